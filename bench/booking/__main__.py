"""`python -m bench.booking`: requests a second that the admin process books, beside those that one worker answers.

- Booking alone: sealed segments as workers leave them are booked by the product's own shipper, with nothing else of the gateway running;
  once in SQLite and once in Postgres (the packaged server, on this machine). 16 tenants in turn, and 10,000 in turn, where no two
  requests of a batch share a row of totals.
- A worker: a real one, in the production set-up of `bench.instructions`, asked over sockets. Its rate is one over the CPU time that it
  takes for a request, its threads included: what it would reach with a core of its own and callers and engines elsewhere.

`--together SECONDS` runs the gateway with four workers under all the load this machine gives instead, and prints how much usage waits on
disk after each minute.
"""

import argparse
import asyncio
import contextlib
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.instructions.setup import MODEL, Case, made, requests
from bench.overhead.processes import cpu_s, running, wait_for
from bench.results_file import machine, refresh, rows_of, write_rows
from domain.usage import Usage
from gateway.config.load import load_settings
from gateway.deps import request_ids
from tenancy.stores.shipper import LedgerShipper
from tenancy.stores.sql import SqlUsageStore, migrate, open_engine
from tenancy.stores.wal import SEALED, all_segments, claim_new, segment_path, size_and_oldest
from tenancy.usage import UsageEvent
from tenancy.wal_frames import frame
from tests.databases import postgres_server

TENANTS = (16, 10_000)
SEGMENT = 2_000
"""Events in one segment: a second's of a busy worker."""
CALLERS = 32
GOAL = 4.0
"""Booking alone over one worker's rate."""

Figures = dict[tuple[str, str, str], list[float]]


def usage(count: int, tenants: int) -> Iterator[UsageEvent]:
    """The rows of so many requests of the production set-up, tenants in turn."""
    dice, new_id, now = random.Random(3), request_ids(secrets.token_hex, time.time), int(time.time() * 1000)
    for n in range(count):
        tenant = f"t{n % tenants}"
        tokens = Usage(dice.randrange(2000), 64, dice.randrange(200), 0)
        yield UsageEvent(
            request_id=new_id(),
            at_unix_ms=now + n // 4,
            tenant=tenant,
            project="default",
            key_id=f"key-of-{tenant}",
            user="",
            endpoint="/v1/chat/completions",
            model=MODEL,
            pool="chat",
            revision="0123456789ab",
            lora="",
            outcome="ok",
            closing="settle",
            usage=tokens,
            units=tokens.prompt_tokens,
            cost_nanousd=dice.randrange(10**6),
            price_id="bench-1",
            duration_ms=dice.randrange(2000),
            organisation="default",
            priority_class="default",
        )


async def booked_alone(url: str, count: int, tenants: int) -> float:
    """Rows a second, of segments that lie ready."""
    engine = open_engine(url)
    await migrate(engine)
    with tempfile.TemporaryDirectory() as folder:
        claim, events = claim_new(Path(folder) / "wal", "bench"), list(usage(count, tenants))
        for number, start in enumerate(range(0, count, SEGMENT), 1):
            segment_path(claim.path, number, SEALED).write_bytes(b"".join(map(frame, events[start : start + SEGMENT])))
        shipper = LedgerShipper(Path(folder) / "wal", SqlUsageStore(engine), time.time)
        begun = time.perf_counter()
        if not await shipper.ship():
            raise RuntimeError(shipper.away)
        took = time.perf_counter() - begun
        if shipper.counts.booked != count:
            raise RuntimeError(f"{shipper.counts.booked} of {count} events were booked")
        await shipper.close()
    await engine.dispose()
    return count / took


class Gateway:
    """A started gateway of the production set-up."""

    def __init__(self, port: int, keys: list[str], run_dir: Path, wal: Path) -> None:
        self.port = port
        self.keys = keys
        self.wal = wal
        self._run_dir = run_dir

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return [int(path.stem.rpartition("-")[2]) for path in self._run_dir.glob("worker-*.sock")]

    def waiting_mb(self) -> float:
        """Usage on disk that is not in SQL yet, segments that are written to included; MB."""
        return size_and_oldest(all_segments(self.wal))[0] / 1e6


def started(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a process that may use every core."""
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


@contextlib.contextmanager
def gateway(home: Path, workers: int, first_port: int) -> Iterator[Gateway]:
    """Instant engines and a gateway in front of them; usage goes to SQLite."""
    case = Case("1k")
    keys = made(home, case)
    file = home / "tidegate.yaml"
    text = file.read_text().replace("workers: 1", f"workers: {workers}\ndrain: {{accept_s: 0.0, grace_s: 1.0}}")
    for at, name in enumerate(("data", "admin")):
        text = text.replace(f'{name}: {{bind: "127.0.0.1:0"}}', f'{name}: {{bind: "127.0.0.1:{first_port + at}"}}')
    ports = [first_port + 2 + at for at in range(case.backends)]
    for at, port in enumerate(ports):
        text = text.replace(f"127.0.0.1:{9001 + at}", f"127.0.0.1:{port}")
    if workers > 1:
        text = text.replace('stores: {counters: "memory://"}\n', "")  # an embedded Valkey
    file.write_text(text)
    with contextlib.ExitStack() as stack:
        for port in ports:
            engine = [sys.executable, "-m", "backends.simengine", "--instant", "--model", MODEL, "--port", str(port)]
            stack.enter_context(running(started(engine, home / "engine.log")))
        for port in ports:
            wait_for(f"http://127.0.0.1:{port}/health")
        run_dir = home / "run"
        serve = [sys.executable, "-m", "gateway", "serve", "-c", str(file), "--run-dir", str(run_dir)]
        stack.enter_context(running(started(serve, home / "gateway.log")))
        deadline = time.monotonic() + 120
        while not (run_dir / "ready.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError((home / "gateway.log").read_text()[-2000:])
            time.sleep(0.1)
        yield Gateway(first_port, keys, run_dir, load_settings(file).ledger_dir)


async def ask(served: Gateway, seconds: float, each_minute: Callable[[float], None] = lambda at_s: None) -> int:
    """Ask on `CALLERS` connections, one request after the other on each; returns how many were answered.

    Args:
        each_minute: called with the seconds since the beginning.

    Raises:
        RuntimeError: a request was refused.
    """
    asked, begun, answered = requests(served.keys, Case("1k")), time.monotonic(), 0

    async def caller() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        while time.monotonic() - begun < seconds:
            writer.write(next(asked))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            if not head.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"refused: {head!r} {body[:500]!r}")
            answered += 1
        writer.close()

    async def minutes() -> None:
        for minute in range(1, int(seconds // 60) + 1):
            await asyncio.sleep(begun + 60 * minute - 0.5 - time.monotonic())
            each_minute(time.monotonic() - begun)

    await asyncio.gather(minutes(), *(caller() for _ in range(CALLERS)))
    return answered


def one_worker(home: Path, seconds: float, first_port: int) -> float:
    """Requests a second that one worker answers with a core of its own."""
    with gateway(home, 1, first_port) as served:
        asyncio.run(ask(served, 3.0))
        before = cpu_s(served.workers())
        answered = asyncio.run(ask(served, seconds))
        used = cpu_s(served.workers()) - before
    return answered / used


def together(home: Path, seconds: float, first_port: int) -> None:
    """Four workers under all the load there is; prints what waits on disk after each minute, and whether it grew."""
    waiting: list[float] = []
    with gateway(home, 4, first_port) as served:

        def look(at_s: float) -> None:
            waiting.append(served.waiting_mb())
            print(f"{at_s:6.0f} s   {waiting[-1]:8.2f} MB wait for SQL", flush=True)

        answered = asyncio.run(ask(served, seconds, look))
    grown = f"{waiting[0]:.2f} MB after the first minute, {waiting[-1]:.2f} MB after the last"
    print(f"{answered / seconds:.0f} requests a second; {grown}")


def measure(rounds: int, rows: int, seconds: float, first_port: int) -> Figures:
    """Booking alone and a worker, in turn."""
    figures: Figures = defaultdict(list)
    for _ in range(rounds):
        for tenants in TENANTS:
            with tempfile.TemporaryDirectory() as folder:
                figures[f"rows_per_s_{tenants}_tenants", "SQLite", "1/s"].append(
                    asyncio.run(booked_alone(f"sqlite:///{folder}/t.db", rows, tenants))
                )
            with postgres_server() as server:
                figures[f"rows_per_s_{tenants}_tenants", "Postgres", "1/s"].append(
                    asyncio.run(booked_alone(server.get_uri(), rows, tenants))
                )
        with tempfile.TemporaryDirectory() as folder:
            figures["requests_per_s", "one worker", "1/s"].append(one_worker(Path(folder), seconds, first_port))
    return figures


def main() -> None:
    """Measure and refresh the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.booking")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60_000, help="that are booked in one measurement")
    parser.add_argument("--seconds", type=float, default=15.0, help="that the worker is asked")
    parser.add_argument("--together", type=float, default=0.0, help="seconds of four workers under load, instead; 120 or more")
    parser.add_argument("--port", type=int, default=21_500, help="the first of seven loopback ports")
    parser.add_argument("--dry", action="store_true", help="print only")
    parser.add_argument(
        "--once", choices=("sqlite", "made"), help="book rows in SQLite once, or only make them; for who counts instructions"
    )
    given = parser.parse_args()
    if given.once == "made":
        list(usage(given.rows, TENANTS[0]))
        return
    if given.once:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(booked_alone(f"sqlite:///{folder}/truth.db", given.rows, TENANTS[0]))
        return
    if given.together:
        with tempfile.TemporaryDirectory() as folder:
            together(Path(folder), given.together, given.port)
        return
    rows = rows_of(measure(given.rounds, given.rows, given.seconds, given.port))
    worker = next(row["value"] for row in rows if row["subject"] == "one worker")
    said = []
    for row in rows:
        times = "" if row["subject"] == "one worker" else f"{row['value'] / worker:.1f} times one worker (goal {GOAL:g})"
        said.append(f"| {row['subject']} | {row['metric']} | {row['value']:.0f} | {times} |")
    print("\n".join(said))
    if given.dry:
        return
    write_rows("booking", rows)
    how = f"`python -m bench.booking {' '.join(sys.argv[1:])}`".replace(" `", "`")
    what = f"medians of {given.rounds} rounds of {given.rows} rows"
    refresh("booking", f"{how}, {machine()}; {what}.\n\n| subject | metric | | |\n|---|---|---|---|\n" + "\n".join(said))


if __name__ == "__main__":
    main()
