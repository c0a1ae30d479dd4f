"""`tidegate serve` as processes: start, serve on several workers, drain, restart, and what it says when it cannot."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.cli import app
from gateway.config.load import load_settings
from gateway.placement.decision_log import find_written
from tests.command_line import Commands
from tests.replicas import Tenancy
from tests.scale import scaled
from tests.timing import HANG_S, hang_s, skip_stalled, timely, until

SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
pools:
  - name: chat
    model: sim
    backends:
      - {{id: e0, url: "{url}"{backend}}}
"""
POLICY = 'tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\n'


class Served:
    def __init__(self, home: Path, process: subprocess.Popen[bytes], ready: dict[str, int], key: str) -> None:
        self.home = home
        self.process = process
        self.url = f"http://127.0.0.1:{ready['data_port']}"
        self.admin = f"http://127.0.0.1:{ready['admin_port']}"
        self.port = ready["data_port"]
        self.headers = {"authorization": f"Bearer {key}"}

    def log_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.home / "out.log").read_text().splitlines() if line.startswith("{")]


def tidegate(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gateway", *arguments], cwd=home, capture_output=True, text=True, check=False, timeout=60)


def key_of(home: Path, tenant: str = "acme") -> str:
    """A new key, made by the command in this process: one of its own would take longer to start than the gateway."""
    made = Commands().invoke(app, ["key", "create", "-c", str(home / "tidegate.yaml"), "--tenant", tenant, "--create-tenant", "--json"])
    assert made.exit_code == 0, made.output
    return str(json.loads(made.stdout)["key"])


@asynccontextmanager
async def serving(
    home: Path,
    url: str,
    workers: int = 1,
    accept_s: float = 0.0,
    grace_s: float = 20.0,
    backend: str = "",
    settings: str | None = None,
    more: str = "",
    tenancy: Tenancy | None = None,
    policy: str = POLICY,
) -> AsyncIterator[Served]:
    """A gateway with a key of the tenant `acme`. `tenancy`: what else its database holds when it starts."""
    (home / "policies").mkdir(parents=True)
    (home / "policies" / "default.yaml").write_text(policy)
    filled = (settings or SETTINGS).format(url=url, workers=workers, accept_s=accept_s, grace_s=grace_s, backend=backend)
    (home / "tidegate.yaml").write_text(filled + more)
    key = await asyncio.to_thread(key_of, home)
    if tenancy is not None:
        await tenancy.store(load_settings(home / "tidegate.yaml"))
    run_dir = home / "run"
    command = [sys.executable, "-m", "gateway", "serve", "-c", "tidegate.yaml", "--run-dir", str(run_dir)]
    with (home / "out.log").open("wb") as out, (home / "err.log").open("wb") as err:
        process = subprocess.Popen(command, cwd=home, stdout=out, stderr=err)
    try:
        try:
            while not (run_dir / "ready.json").exists():
                assert process.poll() is None, (home / "err.log").read_text()
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:  # the test's own time limit, which grows with the load of the machine
            print((home / "err.log").read_text())
            raise
        yield Served(home, process, json.loads((run_dir / "ready.json").read_text()), key)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 20)
            except subprocess.TimeoutExpired:
                process.kill()


def ask(**fields: object) -> dict[str, object]:
    return {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}


async def test_two_workers_serve_and_everything_is_seen(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url, workers=2) as served:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            for path, status in (("/livez", 200), ("/readyz", 200), ("/version", 200), ("/nope", 404)):
                assert (await client.get(served.admin + path)).status_code == status
            for _ in range(20):  # a new connection each, so that the kernel spreads them over both workers
                reply = await client.post(
                    f"{served.url}/v1/chat/completions", json=ask(), headers={**served.headers, "connection": "close"}
                )
                assert reply.status_code == 200
            assert (await client.get(f"{served.url}/metrics", headers=served.headers)).status_code == 404
            assert (await client.get(f"{served.admin}/v1/models", headers=served.headers)).status_code == 404
            async with asyncio.timeout(hang_s()):  # the last reading may be of the moment before the last answer ended, or late
                while True:
                    (listed,) = (await client.get(f"{served.admin}/backends")).json()["backends"]
                    if listed["signals"]["running"] == 0 and listed["signals_age_s"] < 1.0:
                        break
            assert (listed["pool"], listed["backend"], listed["up"]) == ("chat", "e0", True)
            shown = await asyncio.to_thread(tidegate, "backend", "list", "--admin", served.admin, home=tmp_path)
            assert "e0" in shown.stdout
            text = (await client.get(f"{served.admin}/metrics")).text
            assert 'tidegate_backend_running_requests{backend="e0",pool="chat"} 0.0' in text
            counted = [line for line in text.splitlines() if line.startswith("tidegate_requests_total") and 'outcome="ok"' in line]
            assert sum(float(line.split()[-1]) for line in counted) == 20
            for family in ("time_to_first_token_seconds", "overhead_seconds", "in_flight_requests", "tokens_total", "hold_closings_total"):
                assert f"tidegate_{family}" in text
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 0
    lines = [line for line in served.log_lines() if line.get("outcome") == "ok"]
    assert len(lines) == 20
    assert len({line["request_id"] for line in lines}) == 20
    assert {line["tenant"] for line in lines} == {"acme"}
    explained = [find_written(tmp_path / "tidegate-explanations", str(line["request_id"])) for line in lines]
    assert [(found.tenant, found.chosen) for found in explained if found is not None] == [("acme", "e0")] * 20, "they outlive the gateway"
    assert "gw_live" not in (tmp_path / "out.log").read_text() + (tmp_path / "err.log").read_text()


@pytest.mark.slow
@pytest.mark.fault("SIGTERM")
@pytest.mark.req("R21")
async def test_sigterm_finishes_streams_and_then_refuses(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    count = scaled(40, 200)
    # some 5 s per answer, so that the first is not over before the last has begun
    async with (
        SimEngine(SimSettings(models=("sim",), speed=0.2)) as engine,
        serving(tmp_path, engine.url, accept_s=0.3, grace_s=60.0) as served,
    ):
        limits = httpx.Limits(max_connections=count + 5)
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S, limits=limits) as client:

            async def one() -> str:
                body = ask(stream=True, max_tokens=150, ignore_eos=True)
                return (await client.post(f"{served.url}/v1/chat/completions", json=body, headers=served.headers)).text

            running = [asyncio.create_task(one()) for _ in range(count)]
            await until(lambda: engine.count >= count)
            if engine.in_flight < count:
                skip_stalled("the first stream was over before the last one had begun")
            served.process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            while (await client.get(f"{served.admin}/readyz")).status_code != 503:
                assert engine.in_flight == count, "unready before the first stream ends"
            unready_s = time.monotonic() - told
            texts = await asyncio.gather(*running)
        assert [text.count("data: [DONE]") for text in texts] == [1] * count
        assert not any('"error"' in text for text in texts)
        assert await asyncio.to_thread(served.process.wait, HANG_S) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{served.url}/v1/models", trust_env=False)
        record_property("figure", f"{count} streams, 0 cut; unready after {unready_s * 1000:.0f} ms")  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.fault("SIGTERM")
@pytest.mark.req("R21")
async def test_who_waits_for_room_goes_on_within_the_grace_and_is_told_after_it(tmp_path: Path) -> None:
    # one at a time, each some 0.3 s
    async with (
        SimEngine(SimSettings(models=("sim",))) as engine,
        serving(tmp_path, engine.url, grace_s=3.0, backend=", max_in_flight: 1") as served,
    ):
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:

            async def one() -> httpx.Response:
                body = ask(max_tokens=45, ignore_eos=True)
                return await client.post(f"{served.url}/v1/chat/completions", json=body, headers=served.headers)

            running = [asyncio.create_task(one()) for _ in range(16)]
            async with asyncio.timeout(HANG_S):
                while "tidegate_queue_depth" not in (page := (await client.get(f"{served.admin}/metrics")).text) or (
                    'tidegate_queue_depth{class="default",pool="chat"} 15.0' not in page
                ):
                    await asyncio.sleep(0.02)
            served.process.terminate()
            replies = await asyncio.gather(*running)
        answered = [reply for reply in replies if reply.status_code == 200]
        told = [reply.json()["error"]["code"] for reply in replies if reply.status_code != 200]
        assert len(answered) > 1, "those that waited go on being let through"
        assert set(told) == {"server_shutting_down"}
        assert await asyncio.to_thread(served.process.wait, 20) == 0


@pytest.mark.slow
@pytest.mark.fault("SIGTERM")
@pytest.mark.req("R21")
async def test_streams_beyond_the_grace_are_told(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",))) as engine, serving(tmp_path, engine.url, grace_s=0.3) as served:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            body = ask(stream=True, max_tokens=5000, ignore_eos=True)
            text = b""
            async with client.stream("POST", f"{served.url}/v1/chat/completions", json=body, headers=served.headers) as reply:
                served.process.terminate()
                with pytest.raises(httpx.RemoteProtocolError):
                    async for data in reply.aiter_raw():
                        text += data
        assert b'"code":"server_shutting_down"' in text
        assert b"[DONE]" not in text
        assert await asyncio.to_thread(served.process.wait, 20) == 0


@pytest.mark.slow
@pytest.mark.req("R34")
async def test_a_revoked_key_is_refused_within_5_s(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    async with SimEngine(SimSettings(models=("sim",))) as engine, serving(tmp_path, engine.url) as served:
        listed = json.loads((await asyncio.to_thread(tidegate, "key", "list", "--json", home=tmp_path)).stdout)
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            assert (await client.get(f"{served.url}/v1/models", headers=served.headers)).status_code == 200
            done = await asyncio.to_thread(tidegate, "key", "revoke", listed[0]["id"], "--yes", home=tmp_path)
            assert done.returncode == 0, done.stderr
            begun = time.monotonic()
            while (await client.get(f"{served.url}/v1/models", headers=served.headers)).status_code != 401:
                await asyncio.sleep(0.05)
            record_property("figure", f"refused after {timely(time.monotonic() - begun, 5.0):.1f} s")  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.req("R34")
async def test_a_running_stream_ends_within_30_s_of_its_keys_revocation(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    async with SimEngine(SimSettings(models=("sim",))) as engine, serving(tmp_path, engine.url) as served:
        (tmp_path / "policies" / "default.yaml").write_text(POLICY + "end_revoked: true\n")
        await until(lambda: "policies in force" in (tmp_path / "err.log").read_text())
        listed = json.loads((await asyncio.to_thread(tidegate, "key", "list", "--json", home=tmp_path)).stdout)
        body, text = ask(stream=True, max_tokens=5000, ignore_eos=True), b""
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            async with client.stream("POST", f"{served.url}/v1/chat/completions", json=body, headers=served.headers) as reply:
                assert reply.status_code == 200
                done = await asyncio.to_thread(tidegate, "key", "revoke", listed[0]["id"], "--yes", home=tmp_path)
                assert done.returncode == 0, done.stderr
                begun = time.monotonic()
                with pytest.raises(httpx.RemoteProtocolError):
                    async for data in reply.aiter_raw():
                        text = (text + data)[-1000:]
            record_property("figure", f"ended after {timely(time.monotonic() - begun, 30.0):.1f} s")  # type: ignore[operator]
    assert b'"code":"invalid_api_key"' in text
    assert sum(line.get("outcome") == "key_revoked" for line in served.log_lines()) == 1


def test_mistakes_are_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(POLICY.replace("pool: chat", "pool: chta"))
    (tmp_path / "tidegate.yaml").write_text(SETTINGS.format(url="http://127.0.0.1:9", workers=1, accept_s=0, grace_s=1, backend=""))
    done = tidegate("serve", "-c", "tidegate.yaml", home=tmp_path)
    monkeypatch.chdir(tmp_path)
    commands = Commands()
    here = [commands.invoke(app, [command, "-c", "tidegate.yaml"]) for command in ("serve", "check")]
    for code, said in ((done.returncode, done.stderr), *((result.exit_code, result.stderr) for result in here)):
        assert code == 1
        assert "default.yaml:3" in said
        assert "chat" in said
    assert commands.invoke(app, ["serve", "-c", "nowhere.yaml"]).exit_code == 1
    assert commands.invoke(app, ["serve", "--no-such-flag"]).exit_code == 2


@pytest.mark.slow
def test_a_missing_engine_key_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(POLICY)
    settings = SETTINGS.format(url="http://127.0.0.1:9", workers=1, accept_s=0, grace_s=1, backend="")
    (tmp_path / "tidegate.yaml").write_text(settings.replace("    model: sim", "    model: sim\n    api_key: {file: nope.key}"))
    done = tidegate("serve", "-c", "tidegate.yaml", home=tmp_path)
    assert done.returncode == 1
    assert "nope.key cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
async def test_what_goes_wrong_while_running_is_said_in_the_log(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine:
        async with serving(tmp_path, engine.url) as served:
            policy = tmp_path / "policies" / "default.yaml"
            policy.write_text(POLICY + "bogus: 1\n")
            served.process.send_signal(signal.SIGHUP)
            await engine.__aexit__(None, None, None)
            said: dict[str, dict[str, object]] = {}
            async with asyncio.timeout(HANG_S):
                while not {"the replacement ended", "backend down"} <= {name for name in said if name}:
                    await asyncio.sleep(0.1)
                    lines = [line for line in (tmp_path / "err.log").read_text().splitlines() if line.startswith("{")]
                    said = {str(line["event"]).partition(" (")[0].rpartition(": ")[2]: line for line in map(json.loads, lines)}
            assert "default.yaml:4:1" in str(said["cannot serve with this configuration"]["reason"])
            assert "ConnectionRefusedError" in str(said["backend down"]["reason"])
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
                assert (await client.get(f"{served.url}/v1/models", headers=served.headers)).status_code == 200, "the old worker stays"
