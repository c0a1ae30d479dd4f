"""The processes of a run: simulated engines, and one gateway in front of them with a key for each tenant."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.overhead.peers import installed
from bench.overhead.processes import LOAD_CPU, cpu_s, running, start, tree, wait_for
from bench.overhead.subjects import MODEL, serving, sglang_router
from bench.overload.plan import ENGINES, KV_TOKENS, SEQUENCES, SLO_TTFT_S, SLOWER, TENANTS
from bench.stored_tenants import store
from gateway.config.pools import PoolSettings
from policies.schema import PolicyDocument

PORT = 18900
SETTINGS = """
data: {{bind: "127.0.0.1:{port}"}}
admin: {{bind: "127.0.0.1:{admin}"}}
drain: {{accept_s: 0.0, grace_s: 1.0}}
log: {{access: false}}
ledger: {{enabled: false}}
engines: {{max_connections_per_backend: 16384}}
pools:
  - name: chat
    model: {model}
{more}    backends:
{backends}
"""
OWN_S = 0.5
"""Of the objective: what an engine takes for the first token, which is not there for waiting."""
KEEPING = "tidegate keeping "
SUBJECTS = ("tidegate", f"{KEEPING}0.25", f"{KEEPING}0.5", "tidegate-unlimited", "sglang-router round_robin")
"""`tidegate-unlimited` sends everything to engines at once, as if they had no limit; `tidegate keeping N` has the `kept_free` N."""


@dataclass(frozen=True)
class Running:
    """A gateway that takes requests."""

    url: str
    keys: list[str]
    pids: list[int]
    engine_pids: list[int]

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds of the gateway, and of all engines."""
        return cpu_s(self.pids), cpu_s(self.engine_pids)


@contextlib.contextmanager
def engines(home: Path) -> Iterator[tuple[list[str], list[int]]]:
    """Addresses and processes of fresh ones."""
    with contextlib.ExitStack() as stack:
        urls, pids = [], []
        for number in range(ENGINES):
            port = PORT + 10 + number
            command = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--port", str(port), "--speed", str(1 / SLOWER)]
            command += ["--kv-tokens", str(KV_TOKENS), "--max-num-seqs", str(SEQUENCES), "--seed", str(number)]
            pids.append(stack.enter_context(running(start(command, LOAD_CPU, home / f"engine-{number}.log"))).pid)
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            wait_for(url + "/health")
        yield urls, pids


def template(home: Path) -> list[str]:
    """Fill a folder with settings and a store that knows every tenant's key; returns the keys."""
    settings_file(home, [f"http://127.0.0.1:{PORT + 10}"], "")
    return store(home / "tidegate.yaml", [f"t{tenant}" for tenant in range(TENANTS)])


def settings_file(home: Path, urls: list[str], limit: str) -> None:
    """Settings and the one policy. What this version of Tidegate has to say about classes, waiting and limits is said where it can."""
    (home / "policies").mkdir(exist_ok=True)
    policy = f'tenant: "*"\nmodels:\n  - {{name: {MODEL}, pool: chat}}\nttft_slo_s: {SLO_TTFT_S}\n'
    said = {"class": "critical", "max_wait_s": SLO_TTFT_S - OWN_S}  # requests lower their class by a header
    known = {field.alias or name for name, field in PolicyDocument.model_fields.items()}
    policy += "".join(f"{name}: {value}\n" for name, value in said.items() if name in known)
    (home / "policies" / "default.yaml").write_text(policy)
    more = f"    limit: {{{limit}}}\n" if limit and "limit" in PoolSettings.model_fields else ""
    backends = "\n".join(f'      - {{id: e{i}, url: "{url}"}}' for i, url in enumerate(urls))
    (home / "tidegate.yaml").write_text(SETTINGS.format(port=PORT, admin=PORT + 1, model=MODEL, backends=backends, more=more))


@contextlib.contextmanager
def tidegate(home: Path, urls: list[str], keys: list[str], engine_pids: list[int], limit: str) -> Iterator[Running]:
    """One worker, as `bench.overhead` starts it."""
    settings_file(home, urls, limit)
    with serving(home) as worker:
        yield Running(f"http://127.0.0.1:{PORT}", keys, [worker], engine_pids)


@contextlib.contextmanager
def subject(name: str, folder: Path, made: Path, keys: list[str]) -> Iterator[Running]:
    """One of `SUBJECTS` in front of fresh engines, in a folder of its own."""
    home = folder / "home"
    shutil.copytree(made, home)
    with engines(folder) as (urls, pids):
        if name.startswith("tidegate"):
            with tidegate(home, urls, keys, pids, limit_of(name)) as running_one:
                yield running_one
        else:
            with sglang_router(home, urls, PORT, policy=name.partition(" ")[2]) as peer:
                yield Running(peer.url, keys, tree(peer.pids[0]), pids)


def limit_of(name: str) -> str:
    """What a subject's pool says of limits."""
    if name.startswith(KEEPING):
        return f"kept_free: {name.removeprefix(KEEPING)}"
    return "enabled: false" if name == "tidegate-unlimited" else ""


def there(name: str) -> bool:
    """Whether this subject can run here."""
    return name.startswith("tidegate") or installed(name.partition(" ")[0])
