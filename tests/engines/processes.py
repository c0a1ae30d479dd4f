"""Engines and a gateway as processes on free loopback ports, started for a test run and gone after it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.time_limit import slowdown

ROOT = Path(__file__).parents[2]
READY_S = 180.0
"""Longest wait for an engine on a quiet machine; vLLM takes 20 s on two quiet cores, SGLang as long."""
STOP_S = 20.0
GAP_S = 12.0
"""The gateway's limit on silence inside a stream. Two busy cores were seen to hold an answer back for 7 s."""
HTTP = httpx.Client(verify=False, timeout=300, trust_env=False)
"""One for all polls: a client of its own for each would load the system's certificates every time, tens of milliseconds."""


@dataclass
class Process:
    """A started engine or gateway; it leads a process group, because engines start processes of their own."""

    name: str
    url: str
    child: subprocess.Popen[bytes]
    log: Path
    key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def get(self, path: str) -> httpx.Response:
        return HTTP.get(self.url + path, headers=self.headers, timeout=10)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return HTTP.post(self.url + path, json=body, headers=self.headers)

    def json_lines(self) -> list[dict[str, Any]]:
        """Its log, where every whole line is JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def series(self, name: str) -> float:
        """The sum of a series' samples on its metrics page; fails when there is none."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith((name + "{", name + " "))]
        assert lines, f"{self.name} has no series {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def wait_ready(self, path: str = "/health") -> None:
        within_s = READY_S * slowdown()
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            assert self.child.poll() is None, f"{self.name} ended with {self.child.returncode}:\n{self.tail()}"
            with contextlib.suppress(httpx.TransportError):
                if self.get(path).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} is not ready after {within_s:.0f} s:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for whatever of its group is left."""
        if self.child.poll() is None:
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def start(name: str, command: Sequence[str], home: Path, *, url: str = "", key: str | None = None, **environment: str) -> Process:
    """Start `command` in a group of its own, its output in `home/NAME.log`."""
    log = home / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, cwd=home, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}, start_new_session=True
        )
    return Process(name, url, child, log, key)


@contextlib.contextmanager
def stopping(*processes: Process) -> Iterator[None]:
    """Stop them in the end, the last first."""
    try:
        yield
    finally:
        for process in reversed(processes):
            process.stop()


@contextlib.contextmanager
def engine_home(engine: str) -> Iterator[Path]:
    """A folder for an engine and its gateway, removed in the end. A short path, because sockets lie in it."""
    home = Path(tempfile.mkdtemp(prefix=f"tidegate-{engine}-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def engine_python(folder: str, target: str) -> str:
    """The interpreter of an engine's environment, which `make` builds; a missing one is an error, never a skip."""
    python = ROOT / folder / "bin" / "python"
    assert (ROOT / folder / ".made").exists(), f"{folder} is not there or not complete; run `make {target}`"
    return str(python)


def tiny_model(python: str, home: Path) -> Path:
    """The folder with `model` and the adapters."""
    done = subprocess.run(
        [python, str(ROOT / "tests/engines/tiny_model.py"), str(home / "tiny")],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return home / "tiny"


def start_vllm(python: str, model: Path, home: Path, name: str, *options: str, key: str | None = None) -> Process:
    """Real vLLM serving `model` as `tiny-served`; see `wait_ready`."""
    port = free_port()
    command = [str(Path(python).with_name("vllm")), "serve", str(model / "model"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "tiny-served", "--enforce-eager", "--max-model-len", "8192", "--block-size", "32"]
    # with bfloat16 vLLM computes attention in AMX tiles, and some virtual machines end a process there with an illegal instruction
    command += ["--num-gpu-blocks-override", "1024", "--dtype", "float32", *options]
    if key:
        command += ["--api-key", key]
    return start(
        name,
        command,
        home,
        url=f"http://127.0.0.1:{port}",
        key=key,
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="1",
        VLLM_SERVER_DEV_MODE="1",
        VLLM_HOST_IP="127.0.0.1",
        # vLLM would bind every process of a machine to the same first core, where they then wait for each other
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS="1",
        VLLM_CACHE_ROOT=str(home / "vllm-cache"),
        VLLM_CONFIG_ROOT=str(home / "vllm-config"),
        # of engines with --otlp-traces-endpoint: gRPC is the default, and 5 s until the first spans
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
        OTEL_BSP_SCHEDULE_DELAY="200",
    )


def ghost_of(pool: dict[str, Any]) -> dict[str, Any]:
    """A pool of the same engine that asks it for a model it does not have."""
    return {**pool, "name": "ghost", "model": "not-served", "backends": [{"id": "ghost", "url": pool["backends"][0]["url"]}]}


def engine_check(engine: Process, *options: str) -> dict[str, str]:
    """What `tidegate engine check` finds: states by what was looked at."""
    command = [sys.executable, "-m", "gateway", "engine", "check", engine.url, "--json", *options]
    keyed = ["--api-key-env", "ENGINE_KEY"] if engine.key else []
    done = subprocess.run(
        [*command, *keyed], env={**os.environ, "ENGINE_KEY": engine.key or ""}, capture_output=True, text=True, check=False
    )
    (found,) = json.loads(done.stdout)["engines"]
    states = {one["what"]: one["state"] for one in found["findings"]}
    assert done.returncode == ("wrong" in states.values()), (done, states)
    return states


def listen_kv(python: str, endpoint: str, home: Path) -> Process:
    """A listener to KV events; its log is what it heard."""
    return start("kv-listener", [python, str(ROOT / "tests/engines/kv_listener.py"), endpoint], home)


@dataclass
class Tidegate(Process):
    """A running gateway: `url` is the data port."""

    admin: str = ""
    keys: dict[str, str] | None = None

    def client(self, tenant: str = "acme") -> httpx.AsyncClient:
        assert self.keys is not None
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=300, trust_env=False, verify=False)

    def backend(self, backend_id: str) -> dict[str, Any]:
        """What it says of one backend on the admin port; a worker that is too busy to answer there is asked again."""
        deadline = time.monotonic() + 5
        while True:
            listed = HTTP.get(self.admin + "/backends").json()["backends"]
            found = [one for one in listed if one["backend"] == backend_id]
            if found or time.monotonic() > deadline:
                return dict(found[0])
            time.sleep(0.1)


def serve_tidegate(
    home: Path,
    pools: list[dict[str, Any]],
    *models: dict[str, str],
    sections: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    before: Callable[[], object] = lambda: None,
    **engines: float,
) -> Tidegate:
    """A real `tidegate serve` in front of `pools`; each pool is the public model `its-name-model` for every tenant.

    Args:
        models: more entries for the policy's models.
        sections: more of the settings.
        policy: more of the policy.
        before: called once the settings are written, before the gateway starts.
        engines: settings of that section.
    """
    (home / "policies").mkdir(parents=True)
    public = [{"name": f"{pool['name']}-model", "pool": pool["name"]} for pool in pools] + list(models)
    settings = {
        "data": {"bind": "127.0.0.1:0"},
        "admin": {"bind": "127.0.0.1:0"},
        "drain": {"accept_s": 0.0, "grace_s": 2.0},
        "engines": {"signals_s": 0.2, **engines},
        "pools": pools,
        **(sections or {}),
    }
    # JSON is YAML
    written = {"tenant": "*", "expose_headers": True, "models": public, **(policy or {})}
    (home / "policies" / "default.yaml").write_text(json.dumps(written))
    (home / "tidegate.yaml").write_text(json.dumps(settings))
    keys = {}
    for tenant in ("acme", "bolt"):
        command = [sys.executable, "-m", "gateway", "key", "create", "--tenant", tenant, "--create-tenant", "--json"]
        made = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        keys[tenant] = json.loads(made.stdout)["key"]
    before()
    command = [sys.executable, "-m", "gateway", "serve", "-c", "tidegate.yaml", "--run-dir", str(home / "run")]
    process = start("tidegate", command, home)
    deadline = time.monotonic() + 60
    while not (home / "run" / "ready.json").exists():
        assert process.child.poll() is None and time.monotonic() < deadline, process.tail()
        time.sleep(0.05)
    ready = json.loads((home / "run" / "ready.json").read_text())
    url, admin = (f"http://127.0.0.1:{ready[port]}" for port in ("data_port", "admin_port"))
    return Tidegate(process.name, url, process.child, process.log, admin=admin, keys=keys)


def start_sglang(python: str, model: Path, home: Path, name: str, *options: str) -> Process:
    """Real SGLang serving `model` as `tiny-served`, on CPU without its kernels; see `wait_ready`."""
    port = free_port()
    here = ROOT / "tests" / "engines" / "sglang_cpu"
    command = [python, str(here / "launch.py"), "--model-path", str(model / "model"), "--served-model-name", "tiny-served"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--attention-backend", "torch_native"]
    command += ["--sampling-backend", "pytorch", "--disable-overlap-schedule", "--context-length", "8192", "--page-size", "16"]
    # without --sleep-on-idle the scheduler spins on most of a core
    command += ["--max-total-tokens", "32768", "--sleep-on-idle", *options]
    return start(
        name,
        command,
        home,
        url=f"http://127.0.0.1:{port}",
        HF_HUB_OFFLINE="1",
        SGLANG_USE_CPU_ENGINE="1",
        PYTHONPATH=str(here),
        OMP_NUM_THREADS="1",  # for this model more threads only wait for each other: 30 tokens/s beside other work, not 2,000
    )
