"""`python -m bench.rest`: CPU and memory of the whole process tree at rest, with an open console, and under a trickle of requests; and
readings of each engine."""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from backends.simengine import SimEngine, SimSettings
from bench.overhead.processes import cpu_s, pss_mb, tree
from bench.results_file import machine, refresh, rows_of, write_rows

SETTLE_S = 8.0
"""Longer than a pool takes to be at rest (`gateway.placement.rest.AT_REST_S`), with two readings after it."""
EVERY_S = 0.3

SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: 0.0, grace_s: 1.0}}
secrets: {{admin_token: {{file: token}}}}
pools:
  - name: chat
    model: sim
    backends:
{backends}
"""

TOKEN = "an-admin-token-of-a-benchmark"
CONSOLE = ("/admin/v1/live", "/admin/v1/requests/live")
"""The streams of one open console."""

Figures = dict[tuple[str, str, str], list[float]]


@contextlib.asynccontextmanager
async def gateway(home: Path, engines: list[SimEngine], workers: int, more: str = "") -> AsyncIterator[tuple[int, str, str, str]]:
    """A gateway as it is installed: its process id, its addresses for callers and for operators, and a key. `more`: of its settings."""
    (home / "token").write_text(TOKEN)
    (home / "policies").mkdir()
    (home / "policies" / "default.yaml").write_text('tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\n')
    backends = "\n".join(f'      - {{id: e{at}, url: "{engine.url}"}}' for at, engine in enumerate(engines))
    (home / "tidegate.yaml").write_text(SETTINGS.format(workers=workers, backends=backends) + more)
    tool = [sys.executable, "-m", "gateway"]
    create = [*tool, "key", "create", "--tenant", "bench", "--create-tenant", "--json"]
    made = await asyncio.to_thread(subprocess.run, create, cwd=home, capture_output=True, check=True, text=True)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*tool, "serve", "--run-dir", str(home / "run")], cwd=home, stdout=log, stderr=log)
    try:
        while not (home / "run" / "ready.json").exists():
            if process.poll() is not None:
                raise RuntimeError((home / "log").read_text()[-2000:])
            await asyncio.sleep(0.1)
        ready = json.loads((home / "run" / "ready.json").read_text())
        url, admin = (f"http://127.0.0.1:{ready[port]}" for port in ("data_port", "admin_port"))
        yield process.pid, url, admin, json.loads(made.stdout)["key"]
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def trickle(url: str, key: str, seconds: float) -> None:
    """A short request every `EVERY_S`, each over a new connection, so that every worker gets some."""
    until = asyncio.get_running_loop().time() + seconds
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
        while asyncio.get_running_loop().time() < until:
            (await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)).raise_for_status()
            await asyncio.sleep(EVERY_S)


@contextlib.asynccontextmanager
async def watched(admin: str) -> AsyncIterator[None]:
    """An open console: something reads what it reads."""

    async def read(client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("GET", path) as stream:
            stream.raise_for_status()
            async for _ in stream.aiter_bytes():
                pass

    async with httpx.AsyncClient(base_url=admin, headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=30.0) as client:
        reading = [asyncio.create_task(read(client, path)) for path in CONSOLE]
        yield
        for task in reading:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def without_log(workers: int, backends: int, seconds: float, figures: Figures) -> None:
    """A gateway at rest without a request log, and with one: the processor time of each."""
    subject = f"{workers} worker{'s' * (workers > 1)}, {backends} backends"
    for name, more in (("without", "request_log: {enabled: false}\n"), ("with", "")):
        async with contextlib.AsyncExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=1000))) for _ in range(backends)]
            pid, *_ = await stack.enter_async_context(gateway(home, engines, workers, more))
            await asyncio.sleep(SETTLE_S)
            pids, begun = tree(pid), asyncio.get_running_loop().time()
            before = cpu_s(pids)
            await asyncio.sleep(seconds)
            spent = (cpu_s(pids) - before) / (asyncio.get_running_loop().time() - begun)
            figures.setdefault((f"cpu_ms_s_rest_{name}_log", subject, "ms/s"), []).append(spent * 1e3)


async def measure(workers: int, backends: int, seconds: float, figures: Figures) -> None:
    """One gateway."""
    subject = f"{workers} worker{'s' * (workers > 1)}, {backends} backends"
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=1000))) for _ in range(backends)]
        pid, url, admin, key = await stack.enter_async_context(gateway(home, engines, workers))
        for state in ("rest", "console", "asked"):
            async with watched(admin) if state == "console" else contextlib.nullcontext():
                await asyncio.sleep(SETTLE_S)  # the first request of a route takes many times as long as the next
                pids = tree(pid)
                reads, before, begun = sum(engine.metrics_reads for engine in engines), cpu_s(pids), loop.time()
                await (trickle(url, key, seconds) if state == "asked" else asyncio.sleep(seconds))
                took_s = loop.time() - begun
                figures.setdefault((f"cpu_ms_s_{state}", subject, "ms/s"), []).append((cpu_s(pids) - before) / took_s * 1e3)
                per_engine = (sum(engine.metrics_reads for engine in engines) - reads) / took_s / backends
                figures.setdefault((f"reads_s_engine_{state}", subject, "1/s"), []).append(per_engine)
            if state == "rest":
                figures.setdefault(("pss_mb", subject, "MB"), []).append(pss_mb(pids))


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--backends", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--log", action="store_true", help="at rest with and without the request log instead, and print only")
    given = parser.parse_args()
    figures: Figures = {}
    for _ in range(given.rounds):
        for workers in given.workers:
            for backends in given.backends:
                asyncio.run((without_log if given.log else measure)(workers, backends, given.seconds, figures))
    rows = rows_of(figures)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    lines = ["| gateway | " + " | ".join(f"`{metric}`" for metric in metrics) + " |", "|---|" + "---|" * len(metrics)]
    for subject in dict.fromkeys(row["subject"] for row in rows):
        values = {row["metric"]: row["value"] for row in rows if row["subject"] == subject}
        lines.append(f"| {subject} | " + " | ".join(f"{values[metric]:.3g}" for metric in metrics) + " |")
    lines.append(f"\n{given.rounds} rounds, medians; {machine()}.")
    if not given.log:
        write_rows("rest", rows)
        refresh("rest", "\n".join(lines))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
