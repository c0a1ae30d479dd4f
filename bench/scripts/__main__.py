"""`python -m bench.scripts`: CPU and latency of one script at 64 callers: redis-py call by call, redis-py with one pipeline per
turn of the loop, and the thin path.

A real Valkey on a unix socket; the script is `sixteen.lua` (one key, 64 arguments, 32 numbers back). CPU is this process's own.
Subjects take turns, and each figure is the median over the rounds.
"""

import argparse
import asyncio
import hashlib
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop
from redis.asyncio import Redis

from bench.results_file import machine, refresh, rows_of, table, write_rows
from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.stores.valkey import node
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.embedded import EmbeddedServer

TEXT = (Path(__file__).parent / "sixteen.lua").read_text()
KEYS = [b"{acme}:limits"]
ARGS: list[bytes | int] = [part for i in range(16) for part in (b"key:acme/web/%d:tokens:day" % i, 1, 1_000_000_000, b"day")]

Call = Callable[[], Awaitable[Any]]


class PipelinePerTurn:
    """redis-py, with what waits in one turn of the loop in one pipeline."""

    def __init__(self, client: Redis, sha: str) -> None:
        self._client, self._sha = client, sha
        self._waiting: list[asyncio.Future[Any]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def call(self) -> Any:
        future = asyncio.get_running_loop().create_future()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(future)
        return await future

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        task = asyncio.create_task(self._exchange(waiting))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _exchange(self, waiting: list[asyncio.Future[Any]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for _ in waiting:
            pipeline.evalsha(self._sha, 1, *KEYS, *ARGS)
        for future, reply in zip(waiting, await pipeline.execute(), strict=True):
            future.set_result(reply)


async def load(call: Call, callers: int, each: int) -> tuple[float, float]:
    """CPU microseconds per call, and the median wait in milliseconds."""
    waits: list[float] = []

    async def caller() -> None:
        for _ in range(each):
            began = time.perf_counter()
            await call()
            waits.append(time.perf_counter() - began)

    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.gather(*(caller() for _ in range(callers)))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s / (callers * each) * 1e6, sorted(waits)[len(waits) // 2] * 1e3


async def measure(path: Path, callers: int, each: int, rounds: int) -> dict[tuple[str, str, str], list[float]]:
    """Every subject in turn, `rounds` times."""
    node.TIMEOUT_S = 10.0  # here a busy machine should be measured, not given up
    sha = hashlib.sha1(TEXT.encode(), usedforsecurity=False).hexdigest()
    found: dict[tuple[str, str, str], list[float]] = {}
    async with AsyncExitStack() as stack:
        thin = ValkeyScripts(CounterUrl(StoreKind.SINGLE, (Address(str(path), 0),)), {"sixteen": TEXT})
        stack.push_async_callback(thin.close)
        assert await thin.start()
        client = Redis(unix_socket_path=str(path))
        stack.push_async_callback(client.aclose)
        subjects: dict[str, Call] = {
            "redis-py": lambda: client.evalsha(sha, 1, *KEYS, *ARGS),
            "redis-py, a pipeline per turn": PipelinePerTurn(client, sha).call,
            "thin path": lambda: thin.run("sixteen", KEYS, ARGS),
        }
        for _ in range(rounds):
            for subject, call in subjects.items():
                await load(call, callers, max(each // 10, 1))
                cpu_us, wait_ms = await load(call, callers, each)
                found.setdefault(("script_cpu_us", subject, "us"), []).append(cpu_us)
                found.setdefault(("script_p50_ms", subject, "ms"), []).append(wait_ms)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--each", type=int, default=300, help="calls of each caller per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder) / "files", Path(folder) / "sock")
        server.start()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(measure(Path(folder) / "sock", args.callers, args.each, args.rounds))
        finally:
            server.stop()
    rows = rows_of(found)
    shown = table(rows, ["script_cpu_us", "script_p50_ms"], "redis-py")
    print(shown)
    if not args.print_only:
        write_rows("scripts", rows)
        refresh("scripts", f"`python -m bench.scripts --callers {args.callers} --rounds {args.rounds}`, {machine()}.\n\n{shown}\n")


if __name__ == "__main__":
    main()
