"""What keeping finished requests costs the admin process: processor time and instructions per request, requests a second, bytes on disk.

A ring takes lines of a production request, and the collector fetches them over a unix socket and keeps them, as in a gateway; both ends
are in this process, so its processor time is that of both. Instructions of user space are counted by callgrind in processes of their own:
what 4,000 requests take, less what 2,000 take, so that starting is not in it.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.results_file import Row, machine, refresh, table, write_rows
from domain.usage import Usage
from gateway.process.worker_link import WorkerLink, worker_socket
from gateway.record import Record
from gateway.request_log.collector import RequestCollector
from gateway.request_log.parquet import ParquetRequests
from gateway.request_log.ring import RequestRing
from gateway.telemetry.access_log import line_of
from tenancy.request_log import RequestStore
from tenancy.stores.memory import MemoryCachePurges, MemoryRequests
from tenancy.stores.sql import SqlRequests, open_engine

METRICS: Final = ("cpu_us_request", "kinstr_request", "requests_per_s", "bytes_request")
SUBJECTS: Final = ("memory", "sqlite", "sqlite + parquet", "postgresql")
ROUND: Final = 1000
"""Requests between two looks of the collector."""


def lines(count: int) -> list[bytes]:
    """Lines as a worker of the production set-up writes them."""
    now = time.time()
    made = []
    for number in range(count):
        at = now + number / 1000
        record = Record(
            f"req-{int(at):08x}-{number:016x}",
            at,
            "ok",
            200,
            1.9034,
            0.0008,
            f"tenant-{number % 16}",
            "default",
            f"key{number % 16:07d}",
            "/v1/chat/completions",
            "chat",
            "chat",
            "",
            f"engine-{number % 4}",
            1,
            (),
            True,
            Usage(812, 96, 768),
            "settle",
            0.25,
            1.64,
            97,
            policy="0123456789abcdef",
            cost_nanousd=123_456,
            price_id="p1",
            priority_class="default",
            client="10.0.0.1",
            user_agent="OpenAI/Python 2.8.1",
        )
        made.append(line_of(record))
    return made


async def measured(kind: str, count: int, folder: Path, postgres: str) -> dict[str, float]:
    """One run."""
    engine = None
    store: RequestStore
    if kind == "memory":
        store = MemoryRequests(most=10**9)
    else:
        engine = open_engine(postgres if kind == "postgresql" else f"sqlite:///{folder / 'requests.db'}")
        store = SqlRequests(engine)
        await store.prepare()

    async def ready() -> None:
        pass

    sinks = [ParquetRequests(folder / "parquet", "b", 30, time.time)] if "parquet" in kind else []
    collector = RequestCollector(folder, store, ready, MemoryCachePurges(), time.time, hours=72, most=10**9, sinks=sinks)
    ring = RequestRing("bench")
    link = WorkerLink(worker_socket(folder, 0, os.getpid()), lambda _: exit("not asked for"), answers=ring.answers())
    await link.start()
    await collector.look()
    written = lines(count)
    began, cpu = time.perf_counter(), time.process_time()
    for start in range(0, count, ROUND):
        for line in written[start : start + ROUND]:
            ring.note(line)
        await collector.look()
    for sink in sinks:
        await sink.close()
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    await link.close()
    if engine is not None:
        await engine.dispose()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix in (".db", ".parquet"))
    found = {"cpu_us_request": cpu / max(count, 1) * 1e6, "requests_per_s": count / took}
    return found | ({"bytes_request": size / count} if size and count else {})


def instructions(kind: str, count: int) -> float:
    """Thousands of instructions per request, of user space."""
    # the first thousand makes statements and caches, and the lines themselves cost the same in both

    def run_of(only: str) -> Callable[[int], list[str]]:
        return lambda requests: ["bench.request_log", "--only", only, "--requests", str(requests)]

    return counted(run_of(kind), count) - counted(run_of("lines"), count)


def counted(module: Callable[[int], list[str]], count: int) -> float:
    """Thousands of instructions of user space that a module takes for each of so many items: what it takes for twice as many, less what it
    takes for those.

    Args:
        module: the module and its arguments for a number of items.
    """

    def total(items: int) -> int:
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", *module(items)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"Collected : (\d+)", done.stderr)
        assert found is not None, done.stderr[-500:]
        return int(found[1])

    return (total(2 * count) - total(count)) / count / 1000


def main() -> None:
    """Measure, and refresh the table in docs/numbers.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="one run of one subject, and print it")
    parser.add_argument("--dry", action="store_true", help="print only")
    asked = parser.parse_args()
    if asked.only == "lines":
        lines(asked.requests)
        return
    if asked.only:
        with tempfile.TemporaryDirectory() as folder:
            print(asyncio.run(measured(asked.only, asked.requests, Path(folder), os.environ.get("TIDEGATE_BENCH_POSTGRES", ""))))
        return
    from tests.databases import postgres_server

    rows: list[Row] = []
    with postgres_server() as server:
        for kind in SUBJECTS:
            runs = []
            for _ in range(asked.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(asyncio.run(measured(kind, asked.requests, Path(folder), server.get_uri())))
            for metric in runs[0]:
                value = sorted(run[metric] for run in runs)[len(runs) // 2]
                rows.append(Row(metric=metric, subject=kind, value=round(value, 1), unit="", n=len(runs)))
            if kind in ("memory", "sqlite"):
                rows.append(Row(metric="kinstr_request", subject=kind, value=round(instructions(kind, 2000), 1), unit="", n=1))
    figures = table(rows, METRICS, "memory")
    print(figures)
    if not asked.dry:
        write_rows("request_log", rows)
        head = f"`python -m bench.request_log`, {machine()}; {asked.requests} requests, medians of {asked.rounds}."
        refresh("request_log", f"{head}\n\n{figures}")


if __name__ == "__main__":
    main()
