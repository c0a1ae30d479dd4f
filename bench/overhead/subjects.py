"""The gateways that are compared: how each is configured and started in front of the same engines."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.overhead.processes import SUBJECT_CPU, running, start, tree, wait_for

MODEL = "bench"
PEERS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Subject:
    """A started gateway: where it listens, which processes are its cost, and the key it wants."""

    name: str
    url: str
    pids: list[int]
    key: str = "none"


Starter = Callable[[Path, list[str]], "contextlib.AbstractContextManager[Subject]"]

NGINX = """
{user} worker_processes 1; daemon off; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 16m; client_body_buffer_size 64k;
  client_body_temp_path {home}/b; proxy_temp_path {home}/p; fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
  upstream engines {{ {servers} keepalive 2048; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; keepalive_requests 1000000000;
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""

SETTINGS = """
data: {{bind: "127.0.0.1:{port}"}}
admin: {{bind: "127.0.0.1:{admin}"}}
drain: {{accept_s: 0.0, grace_s: 1.0}}
log: {{access: {access}}}
ledger: {{enabled: {access}}}
engines: {{client: {client}, max_connections_per_backend: 4096}}
pools:
  - name: chat
    model: {model}
    backends:
{backends}
"""


@contextlib.contextmanager
def nginx(home: Path, engines: list[str], port: int) -> Iterator[Subject]:
    """nginx with `proxy_pass` and keep-alive to the engines: the floor."""
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in engines)
    (home / "nginx.conf").write_text(NGINX.format(user="user root;" if os.geteuid() == 0 else "", home=home, port=port, servers=servers))
    command = [shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(home / "nginx.conf")]
    with running(start(command, SUBJECT_CPU, home / "nginx.log")) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(url + "/health")
        yield Subject("nginx", url, tree(process.pid))


@contextlib.contextmanager
def serving(home: Path) -> Iterator[int]:
    """A gateway of one worker with the settings in a folder; the worker's process id."""
    run_dir = home / "run"
    command = [sys.executable, "-m", "gateway", "serve", "-c", str(home / "tidegate.yaml"), "--run-dir", str(run_dir)]
    with running(start(command, SUBJECT_CPU, home / "tidegate.log")):
        deadline = time.monotonic() + 60
        while not (run_dir / "ready.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError((home / "tidegate.log").read_text()[-2000:])
            time.sleep(0.05)
        worker = next(run_dir.glob("worker-0-*.sock"))
        yield int(worker.stem.rpartition("-")[2])


@contextlib.contextmanager
def tidegate(
    home: Path,
    engines: list[str],
    port: int,
    *,
    name: str = "tidegate",
    access: bool = False,
    client: str = "relay",
    policy: str = "",
    more: str = "",
) -> Iterator[Subject]:
    """One worker with authentication, hold, routing, metering and metrics; the worker's process is what is measured. `more` are further
    settings, as YAML."""
    (home / "policies").mkdir(exist_ok=True)
    chosen = f"routing: {policy}\n" if policy else ""
    (home / "policies" / "default.yaml").write_text(f'tenant: "*"\nmodels:\n  - {{name: {MODEL}, pool: chat}}\n{chosen}')
    backends = "\n".join(f'      - {{id: e{i}, url: "{url}"}}' for i, url in enumerate(engines))
    filled = SETTINGS.format(port=port, admin=port + 1, access=str(access).lower(), client=client, model=MODEL, backends=backends)
    (home / "tidegate.yaml").write_text(filled + more)
    tool = [sys.executable, "-m", "gateway"]
    made = subprocess.run([*tool, "key", "create", "--tenant", "bench", "--create-tenant", "--json", "-c", str(home / "tidegate.yaml")],
                          capture_output=True, check=True, text=True)  # fmt: skip
    with serving(home) as worker:
        yield Subject(name, f"http://127.0.0.1:{port}", [worker], json.loads(made.stdout)["key"])


@contextlib.contextmanager
def bare(home: Path, engines: list[str], port: int) -> Iterator[Subject]:
    """The same two protocols with nothing between them but one task per request: what any feature of ours adds to."""
    command = [sys.executable, "-m", "bench.overhead.bare_relay", str(port), *engines]
    with running(start(command, SUBJECT_CPU, home / "bare.log")) as process:
        # not by HTTP: a `connection: close` would go through to the engine as it is
        time.sleep(1.0)
        yield Subject("tidegate-bare", f"http://127.0.0.1:{port}", [process.pid])


@contextlib.contextmanager
def litellm(home: Path, engines: list[str], port: int) -> Iterator[Subject]:
    """litellm's proxy with two deployments, one worker, no database, no callbacks."""
    models = [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": url + "/v1", "api_key": "none"}} for url in engines
    ]
    (home / "litellm.yaml").write_text(json.dumps({"model_list": models, "general_settings": {"master_key": "sk-bench"}}))
    command = [str(PEERS / ".venv-peers-litellm/bin/litellm"), "--config", str(home / "litellm.yaml"), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1"]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    with running(start(command, SUBJECT_CPU, home / "litellm.log", env)) as process:
        wait_for(f"http://127.0.0.1:{port}/health/liveliness", 120)
        yield Subject("litellm", f"http://127.0.0.1:{port}", tree(process.pid), "sk-bench")


@contextlib.contextmanager
def sglang_router(home: Path, engines: list[str], port: int, *, policy: str = "cache_aware") -> Iterator[Subject]:
    """sglang-router (Rust), everything else as its command line sets it."""
    command = [str(PEERS / ".venv-peers-sglang-router/bin/python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--worker-urls",
        *engines,
        "--policy",
        policy,
        "--log-level",
        "warn",
        "--prometheus-port",
        str(port + 1),
    ]
    with running(start(command, SUBJECT_CPU, home / "sglang.log")) as process:
        wait_for(f"http://127.0.0.1:{port}/health", 60)
        time.sleep(3)
        yield Subject("sglang-router", f"http://127.0.0.1:{port}", tree(process.pid))


@contextlib.contextmanager
def vllm_router(home: Path, engines: list[str], port: int, *, policy: str = "cache_aware") -> Iterator[Subject]:
    """vllm-router (Rust), everything else as its command line sets it."""
    command = [str(PEERS / ".venv-peers-vllm-router/bin/vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *engines, "--policy", policy, "--log-level", "warning", "--prometheus-port", str(port + 1)]
    with running(start(command, SUBJECT_CPU, home / "vllm.log")) as process:
        wait_for(f"http://127.0.0.1:{port}/health", 60)
        time.sleep(3)
        yield Subject("vllm-router", f"http://127.0.0.1:{port}", tree(process.pid))
