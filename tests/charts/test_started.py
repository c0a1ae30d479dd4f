"""What the chart of the gateway renders, taken by the gateway: every example's settings by the real loader, and a gateway started as its
Pod says, with a read-only root, its own user and no capabilities, probed, asked, reloaded and ended."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.config.load import read_settings
from gateway.fleet.sources import problems_in_files
from policies.load import load_policies
from tests.charts.helm import ROOT, Document, examples, of, pods, rendered
from tests.charts.pod import Kubelet
from tests.charts.test_gateway_chart import LEAST, POLICY
from tests.timing import hang_s
from tests.valkey_servers import free_port

pytestmark = pytest.mark.helm

TOKEN = "an-admin-token-of-32-characters!"
SECRETS = {"tidegate": {"pepper": "0123456789abcdef" * 4, "admin-token": TOKEN}}
WORKERS, MOST = 2, 24
"""The workers of the gateway that is started, and the connections that each of them takes."""
ADMIN = {"authorization": f"Bearer {TOKEN}"}


def materialised(documents: list[Document], folder: Path, *, prefix: str = "") -> Path:
    """The files of the gateway's container below `folder`; returns that of the settings."""
    settings = of(documents, "ConfigMap", f"tidegate{prefix}")["data"]["tidegate.yaml"]
    for path in re.findall(r"/(?:etc|var|git)/[\w./-]+", settings):
        assert path.startswith(("/etc/tidegate-", "/var/lib/tidegate/", "/git/current/")), path
    text = re.sub(r"(?<=[ :/])/(?=(etc|var|git|tokenizers)/)", f"{folder}/", settings)
    (folder / "etc/tidegate-secrets").mkdir(parents=True)
    for name, value in SECRETS["tidegate"].items():
        (folder / "etc/tidegate-secrets" / name).write_text(value)
    (folder / "var/lib/tidegate").mkdir(parents=True)
    source = [d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"] == "tidegate-policies"]
    policies = folder / ("etc/tidegate-policies" if source else "git/current/policies")
    policies.mkdir(parents=True)
    for name, policy in (source[0]["data"] if source else {"default.yaml": 'tenant: "*"\nmodels: [{name: a, pool: large}]\n'}).items():
        (policies / name).write_text(policy)
    file = folder / "tidegate.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", examples("tidegate"))
def test_the_loader_takes_the_settings_of_an_example(name: str, tmp_path: Path) -> None:
    file = materialised(rendered("tidegate", name), tmp_path)
    environment = {"TIDEGATE__STORES__SQL": "postgresql://u:p@db/t", "TIDEGATE__STORES__COUNTERS": "redis://:p@valkey:6379"}
    outside = name in ("eight-gpu-node", "fleet-100-gpus", "air-gapped")
    for tls in re.findall(r"\S+/etc/tidegate-engines/\S+", file.read_text()):
        pytest.importorskip("trustme")
        _certificates(Path(tls).parent)
    reading = read_settings(file, environment if outside else {})
    assert not reading.problems, reading.problems
    settings = reading.settings
    assert settings is not None
    load_policies(settings.policies_dir, *settings.policy_targets, settings.prompts_dir, settings.detector_names)
    assert settings.admin.bind_address == ("0.0.0.0", 8081)
    if name == "fleet-100-gpus":
        assert [len(pool.backends) for pool in settings.pools] == [16, 0, 16]
        assert {b.role for b in settings.pools[2].backends} == {"prefill", "decode"}


def test_the_job_of_a_first_installation_needs_no_certificate(tmp_path: Path) -> None:
    """Nobody has made those of engineTls yet, and what the Job reads has no mistake."""
    file = materialised(rendered("tidegate", "fleet-100-gpus"), tmp_path, prefix="-migrations")
    environment = {"TIDEGATE__STORES__SQL": "postgresql://u:p@db/t", "TIDEGATE__STORES__COUNTERS": "redis://:p@valkey:6379"}
    reading = read_settings(file, environment)
    assert reading.settings is not None, reading.problems
    assert problems_in_files(reading.settings, environment) == []
    assert {b.url.split(":")[0] for pool in reading.settings.pools for b in pool.backends} == {"https"}


def _certificates(folder: Path) -> None:
    import trustme

    if (folder / "tls.crt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    leaf = authority.issue_cert("tidegate.example")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))


class Started:
    """The gateway of a rendered Pod, and where it answers."""

    def __init__(self, process: "subprocess.Popen[bytes]", kubelet: Kubelet, container: Document, log: Path) -> None:
        self.process = process
        self.kubelet = kubelet
        self.container = container
        self.log = log
        self.ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    def url(self, port: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def probe(self, name: str) -> str:
        get = self.container[name]["httpGet"]
        return self.url(get["port"], get["path"])


def inside(started: Started, script: str) -> str:
    """What a shell prints in the mount namespace of the gateway, as its user."""
    kubelet = started.kubelet
    words = ["nsenter", "--target", str(started.process.pid), "--mount", "setpriv", f"--reuid={kubelet.uid}", f"--regid={kubelet.gid}"]
    done = subprocess.run([*words, "--clear-groups", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    if os.geteuid() != 0:
        pytest.skip("mounting a container's volumes takes root")
    async with SimEngine(SimSettings(models=("tiny",), speed=1000)) as engine:
        pool = {"name": "chat", "model": "tiny", "backends": [{"id": "a", "url": engine.url}]}
        values = {
            **LEAST,
            "ports": {"data": free_port(), "admin": free_port()},
            "settings": {
                "pools": [pool],
                "workers": WORKERS,
                "data": {"limits": {"max_connections": MOST, "header_timeout_s": 60.0}},
                "drain": {"accept_s": 0.2, "grace_s": 10.0},
            },
        }
        documents = rendered("tidegate", **values)
        pod = pods(documents)["StatefulSet/tidegate"]
        kubelet = Kubelet(tmp_path, documents, pod, SECRETS)
        container = pod["containers"][0]
        log = tmp_path / "log"
        process = kubelet.start(container, {"tidegate": str(ROOT / ".venv" / "bin" / "tidegate")}, log)
        gateway = Started(process, kubelet, container, log)
        try:
            await _until(lambda: _status(gateway.probe("readinessProbe")) == 200, gateway)
            yield gateway
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.wait, hang_s())


def _status(url: str) -> int:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code
    except httpx.TransportError:
        return 0


async def _until(true: Callable[[], Any], gateway: Started) -> None:
    ends = time.monotonic() + hang_s()
    while not await asyncio.to_thread(true):
        assert gateway.process.poll() is None, gateway.log.read_text()[-2000:]
        assert time.monotonic() < ends, gateway.log.read_text()[-2000:]
        await asyncio.sleep(0.05)


async def test_a_gateway_starts_as_its_pod_says_and_serves(started: Started) -> None:
    assert _status(started.probe("startupProbe")) == 200
    assert _status(started.probe("livenessProbe")) == 200
    assert _status(started.url("data", "/health")) == 200
    status = Path(f"/proc/{started.process.pid}/status").read_text()
    assert re.search(r"^Uid:\t65532\t65532", status, re.MULTILINE)
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    for folder in ("/", "/etc/tidegate", "/etc/tidegate-policies", "/var/lib", "/usr"):
        assert "Read-only file system" in inside(started, f"touch {folder}/x"), folder

    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        key = await _key(started)
        headers = {"authorization": f"Bearer {key}"}
        ask = {"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}

        async def served() -> int:
            reply = await client.post(started.url("data", "/v1/chat/completions"), json=ask, headers=headers)
            return reply.status_code

        # the command wrote the key into the database, and the worker hears of it within seconds
        while (status_code := await served()) == 401:
            await asyncio.sleep(0.05)
        assert status_code == 200

        # the kubelet swaps the link of a ConfigMap that changed, and the gateway reads the policies again
        started.kubelet.fill("policies", {"default.yaml": 'tenant: "*"\nmodels: [{name: other, pool: chat}]\n'})

        def renamed() -> bool:
            """Both workers: the kernel deals connections out to them."""
            answers = [httpx.get(started.url("data", "/v1/models"), headers=headers, trust_env=False).json() for _ in range(20)]
            return [[model["id"] for model in answer.get("data", [])] for answer in answers] == [["other"]] * 20

        await _until(renamed, started)
        # and one with a mistake changes nothing
        started.kubelet.fill("policies", {"default.yaml": 'tenant: "*"\nmodels: [{name: worse, pool: chta}]\n'})
        await _until(lambda: "chta" in started.log.read_text(), started)
        assert renamed()

    began = time.monotonic()
    started.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(started.process.wait, hang_s()) == 0, started.log.read_text()[-2000:]
    assert time.monotonic() - began < started.kubelet.pod["terminationGracePeriodSeconds"]


async def _key(started: Started) -> str:
    """A key made by the command in the gateway's container, as the notes of the chart say."""
    program = ROOT / ".venv" / "bin" / "tidegate"
    address = f"TIDEGATE_ADMIN_URL=http://127.0.0.1:{started.ports['admin']}"
    options = "--tenant acme --create-tenant --label test --json --token-file /etc/tidegate-secrets/admin-token"
    text = await asyncio.to_thread(inside, started, f"HOME=/tmp {address} {program} key create {options}")
    key: str = json.loads(text)["key"]
    return key


async def test_strangers_who_use_up_the_data_port_do_not_starve_the_probes(started: Started) -> None:
    """Strangers hold all connections of every worker with heads that they do not end; one more is refused, and the probes still answer."""

    def refused() -> bool:
        """Whether whichever worker the kernel deals the connection to takes no more."""
        for _ in range(20):
            stranger = socket.create_connection(("127.0.0.1", started.ports["data"]), timeout=hang_s())
            held.append(stranger)
            stranger.sendall(b"GET /health HTTP/1.1\r\nhost: gateway\r\n")
        return [_status(started.url("data", "/health")) for _ in range(20)] == [503] * 20

    held: list[socket.socket] = []
    try:
        await _until(refused, started)
        assert len(held) >= WORKERS * MOST
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert _status(started.probe(probe)) == 200
        assert _status(started.url("data", "/health")) == 503, "the data port was taken all the while"
    finally:
        for connection in held:
            connection.close()
    await _until(lambda: _status(started.url("data", "/health")) == 200, started)


async def test_the_job_of_migrations_refuses_a_policy_with_a_mistake_before_any_pod_changes(tmp_path: Path) -> None:
    """The command of the hook Job on the rendered settings, with a database that there is."""
    values = {**LEAST, "policies": {"files": {"default.yaml": 'tenant: "*"\nmodels: [{name: chat, pool: chta}]\n'}}}
    file = materialised(rendered("tidegate", **values), tmp_path)
    command = [ROOT / ".venv" / "bin" / "tidegate", "serve", "--config", file, "--rehearse", "--log-format", "json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "there is no pool 'chta'; did you mean 'chat'?" in done.stderr
    (tmp_path / "etc/tidegate-policies/default.yaml").write_text(POLICY["files"]["default.yaml"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "var/lib/tidegate/tidegate.db").exists(), "the schema is there before a gateway starts"
