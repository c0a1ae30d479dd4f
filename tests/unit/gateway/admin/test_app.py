"""The admin port: its answers as an app, and its life under a real supervisor."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from gateway.admin.app import create_admin_app, made_before_forking
from gateway.process.snapshots import WorkerSnapshot
from gateway.telemetry.metrics import Metrics
from tests.admin_harness import OWNER, admin_port
from tests.timing import timely

WITHIN_S = 60.0
"""When a wait for the processes is given up, so that the test ends that would hang."""


class Workers:
    """Stands in for the workers: answers what the test sets."""

    def __init__(self) -> None:
        self.seen: list[WorkerSnapshot] = []
        self.asked: list[bool] = []
        self.draining = False
        self.on_collect: Callable[[], None] = lambda: None

    async def collect(self, *, with_metrics: bool) -> list[WorkerSnapshot]:
        self.asked.append(with_metrics)
        self.on_collect()
        return self.seen

    def app(self) -> FastAPI:
        return create_admin_app(self.collect, version="1.2.3", workers=1, draining=lambda: self.draining)


def ready_worker() -> WorkerSnapshot:
    return WorkerSnapshot(index=0, pid=1, state="ready", started_at=1.0, metrics=Metrics().snapshot())


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
async def admin(workers: Workers) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(workers.app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


async def test_livez_never_asks_a_worker(admin: httpx.AsyncClient, workers: Workers) -> None:
    answer = await admin.get("/livez")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert (await admin.head("/livez")).status_code == 200
    assert workers.asked == []


async def test_routes_that_were_made_before_serve_the_api_they_are_given(tmp_path: Path, workers: Workers) -> None:
    routes = made_before_forking("1.2.3")
    async with admin_port(tmp_path) as port:
        app = create_admin_app(workers.collect, version="1.2.3", workers=1, api=port.parts, routes=routes)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
            described = (await client.get("/admin/v1/openapi.json", headers=OWNER)).raise_for_status().json()
            assert described["info"]["version"] == "1.2.3"
            assert (await client.get("/admin/v1/tenants", headers=OWNER)).status_code == 200
            assert (await client.get("/admin/v1/tenants")).status_code == 401


async def test_readyz_follows_the_workers(admin: httpx.AsyncClient, workers: Workers) -> None:
    answer = await admin.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reasons": ["worker 0: not answering"]})
    workers.seen = [ready_worker()]
    answer = await admin.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})
    assert answer.headers["cache-control"] == "no-store"
    assert workers.asked == [False, False], "a probe does not make workers copy their numbers"


@pytest.mark.req("R21")
async def test_draining_is_unready_at_once(admin: httpx.AsyncClient, workers: Workers) -> None:
    workers.seen = [ready_worker()]

    def sigterm() -> None:
        workers.draining = True

    workers.on_collect = sigterm
    assert (await admin.get("/readyz")).status_code == 503, "SIGTERM came while the workers were asked"
    answer = await admin.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["draining"])
    assert len(workers.asked) == 1, "then nobody is asked any more"
    assert (await admin.get("/livez")).status_code == 200


async def test_metrics_and_version(admin: httpx.AsyncClient, workers: Workers) -> None:
    workers.seen = [ready_worker()]
    answer = await admin.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tidegate_build_info{version="1.2.3"} 1.0' in answer.text
    assert (await admin.get("/version")).json()["version"] == "1.2.3"
    assert "/readyz" in (await admin.get("/")).json()["see"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/models", 404, "unknown_url"),
        ("GET", "/docs", 404, "unknown_url"),
        ("POST", "/backends", 405, None),
        ("GET", "/admin/v1/openapi.json", 404, "unknown_url"),
        ("GET", "/openapi.json", 404, "unknown_url"),
        ("POST", "/metrics", 405, None),
    ],
)
async def test_refusals_have_openais_shape(admin: httpx.AsyncClient, method: str, path: str, status: int, code: str) -> None:
    answer = await admin.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == ("invalid_request_error", code)
    assert (answer.headers.get("allow") is not None) == (status == 405)


async def test_fastapis_422_and_500_never_escape(workers: Workers) -> None:
    app = workers.app()

    @app.get("/number/{value}")
    async def number(value: int) -> int:
        return value

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret cause")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        invalid = await client.get("/number/se%22cret")
        assert (invalid.status_code, invalid.json()["error"]["code"]) == (400, "invalid_value")
        assert "cret" not in invalid.text
        failed = await client.get("/broken")
        assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
        assert "cause" not in failed.text.replace("its cause is in the log", "")


PROGRAM = """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from gateway.admin.app import admin_main
from gateway.process.supervisor import ProcessPlan, run
from gateway.process.worker_link import WorkerLink, worker_socket
from gateway.process.snapshots import WorkerSnapshot
from gateway.telemetry.metrics import Metrics

home = Path(sys.argv[1])

async def serve(seat):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    state = "ready"
    def snapshot(with_metrics):
        return WorkerSnapshot(index=seat.index, pid=os.getpid(), state=state, started_at=1.0, metrics=Metrics().snapshot())
    link = WorkerLink(worker_socket(seat.run_dir, seat.index, os.getpid()), snapshot)
    await link.start()
    seat.ready()
    await stop.wait()
    state = "draining"
    while (home / "streams").exists():
        await asyncio.sleep(0.01)
    await link.close()

plan = ProcessPlan(data_host="127.0.0.1", data_port=0, admin_host="127.0.0.1", admin_port=0, workers=2, accept_s=0.0, grace_s=10.0)
sys.exit(run(plan, lambda seat: asyncio.run(serve(seat)), lambda seat: admin_main(seat, version="1.2.3", workers=2),
             clock=time.monotonic, rng=random.Random(1), run_dir=home / "run"))
"""


def get(url: str) -> httpx.Response:
    """Each on a connection of its own, as probes do: the admin process changes under us."""
    return httpx.get(url, trust_env=False, timeout=WITHIN_S)


def admin_pid(home: Path) -> int:
    slots = json.loads((home / "run" / "supervisor.json").read_text())["slots"]
    return int(next(slot["pid"] for slot in slots if slot["name"] == "admin"))


@pytest.mark.req("R21")
def test_the_admin_process_stays_and_says_unready_until_the_last_stream_is_done(tmp_path: Path) -> None:
    (tmp_path / "streams").touch()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + WITHIN_S
        while not (tmp_path / "run" / "ready.json").exists():
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        url = f"http://127.0.0.1:{json.loads((tmp_path / 'run' / 'ready.json').read_text())['admin_port']}"
        assert get(url + "/readyz").status_code == 200
        assert 'tidegate_worker_state{state="ready",worker="1"} 1.0' in get(url + "/metrics").text
        before = admin_pid(tmp_path)
        process.send_signal(signal.SIGHUP)
        answers = []
        while admin_pid(tmp_path) == before:
            answers.append((get(url + "/readyz").json(), time.monotonic()))
            assert time.monotonic() < give_up_at
        # the admin process that goes says so of itself, in the moment before the supervisor writes down who came for it
        left_at = time.monotonic()
        while answers and answers[-1][0]["reasons"] == ["draining"]:
            left_at = answers.pop()[1]
        timely(time.monotonic() - left_at, 0.5)
        assert [answer for answer, _ in answers if not answer["ready"]] == [], "a rolling restart stays ready"
        process.send_signal(signal.SIGTERM)
        while get(url + "/readyz").status_code == 200:
            assert time.monotonic() < give_up_at
        assert get(url + "/readyz").json()["reasons"] == ["draining"]
        assert get(url + "/livez").status_code == 200
        (tmp_path / "streams").unlink()
        assert process.wait(WITHIN_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
