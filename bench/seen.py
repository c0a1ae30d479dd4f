"""`python -m bench.seen`: what the request log, traces and kept texts cost, as processor time of the whole process tree per request.

A gateway of each kind, with ten rules and four limits a tenant as `bench.instructions` has them, stands before the same simulated engines.
Rounds of requests go to them in turn, in an order that changes; a kind's figure is the median of its rounds, each over the plain gateway's
round beside it. System calls and the admin process are in it, which `bench.instructions` does not count; so is what a gateway does whether
it is asked or not, which is the same for all kinds.

`--instructions` counts instructions of user space instead, which other work on the machine does not change: those of a worker with and
without traces, and those of the admin process for a request that is booked and for one that is kept in the request log. It needs valgrind.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvloop

from backends.simengine import SimEngine, SimSettings
from bench.instructions.__main__ import count
from bench.instructions.setup import ALL_TRACED, EXPORTING, MODEL, PRODUCTION, TEXTS, TRACED, Case, made, requests
from bench.overhead.processes import SUBJECT_CPU, cpu_s, running, start, tree
from bench.request_log import counted
from bench.request_log import instructions as of_request_log
from bench.results_file import Row, machine, refresh, write_rows
from tests.otlp_receiver import otlp_receiver

PLAIN: Final = "tidegate, no request log"
SUBJECTS: Final = (PLAIN, PRODUCTION, TRACED, TEXTS, ALL_TRACED)
"""Metrics are always counted, so that they are in all of them."""
CONNECTIONS: Final = 8
SETTLED_S: Final = 3.0
"""After the requests of a round: by then everything about them is stored and sent."""
WARM: Final = 400
"""Requests of a gateway before its first round."""


class Gateway:
    """One gateway of one worker, on the core of the subjects.

    Args:
        keys: one for each tenant.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", home: Path, keys: list[str]) -> None:
        self._process = process
        self._home = home
        self._asked = requests(keys, Case("1k"))
        self._port = 0

    async def ready(self) -> None:
        """Wait until it serves. Raises RuntimeError where it ended."""
        while not (self._home / "run" / "ready.json").exists():
            if self._process.poll() is not None:
                raise RuntimeError((self._home / "log").read_text()[-2000:])
            await asyncio.sleep(0.1)
        self._port = json.loads((self._home / "run" / "ready.json").read_text())["data_port"]
        await asyncio.sleep(SETTLED_S)  # engines have been asked what they serve

    async def round(self, asked: int) -> float:
        """Ask so many requests; returns the microseconds of processor time that the whole tree took for each."""
        pids = tree(self._process.pid)
        before = cpu_s(pids)
        await asyncio.gather(*(self._caller(asked // CONNECTIONS) for _ in range(CONNECTIONS)))
        await asyncio.sleep(SETTLED_S)
        return (cpu_s(pids) - before) / (asked // CONNECTIONS * CONNECTIONS) * 1e6

    async def _caller(self, count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for _ in range(count):
            writer.write(next(self._asked))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200 "):
                raise RuntimeError(f"a request was refused: {head!r}")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.close()
        await writer.wait_closed()


@contextlib.contextmanager
def gateway(subject: str, engines: list[str], receiver: str) -> Iterator[Gateway]:
    """Starts a gateway of a kind, and ends it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        keys = made(home, Case("1k", subject=subject), receiver=receiver if subject in EXPORTING else "")
        file = home / "tidegate.yaml"
        settings = file.read_text()
        for at, url in enumerate(engines):
            settings = settings.replace(f"http://127.0.0.1:{9001 + at}", url)
        file.write_text(settings + ("request_log: {enabled: false}\n" if subject == PLAIN else ""))
        command = [sys.executable, "-m", "gateway", "serve", "-c", str(file), "--run-dir", str(home / "run")]
        with running(start(command, SUBJECT_CPU, home / "log")) as process:
            yield Gateway(process, home, keys)


def instructions() -> None:
    """Count, and print, thousands of instructions a request."""
    cases = (Case("1k"), *(Case("1k", subject=subject, exports=True) for subject in (PRODUCTION, TRACED, TEXTS, ALL_TRACED)))
    for case in cases:
        whole = count(case, WARM, 500).by_thread
        known = sum(value for name, value in whole.items() if not name.endswith(" explanations"))  # who compresses them comes when it likes
        print(f"{known:10.1f}  worker, {case.subject}{', with time to export' if case.exports else ''}")
    booked = counted(lambda rows: ["bench.booking", "--once", "sqlite", "--rows", str(rows)], 2000)
    making = counted(lambda rows: ["bench.booking", "--once", "made", "--rows", str(rows)], 2000)
    print(f"{booked - making:10.1f}  admin process, booking in SQLite")
    print(f"{of_request_log('sqlite', 2000):10.1f}  admin process, request log in SQLite")


async def measure(rounds: int, asked: int) -> dict[str, list[float]]:
    """Microseconds of processor time per request: by kind, one for each round."""
    found: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
    async with contextlib.AsyncExitStack() as stack:
        receiver = stack.enter_context(otlp_receiver())
        simulated = [SimEngine(SimSettings(models=(MODEL,), speed=1000)) for _ in range(Case("1k").backends)]
        engines = [(await stack.enter_async_context(engine)).url for engine in simulated]
        gateways = {}
        for subject in SUBJECTS:  # their stores are made by loops of their own
            gateways[subject] = await asyncio.to_thread(stack.enter_context, gateway(subject, engines, receiver.url))
        for one in gateways.values():
            await one.ready()
            await one.round(WARM)
        order = random.Random(3)
        for _ in range(rounds):
            for subject in order.sample(SUBJECTS, len(SUBJECTS)):
                found[subject].append(await gateways[subject].round(asked))
    return found


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=1000, help="of a round")
    parser.add_argument("--instructions", action="store_true", help="count instructions, and write nothing")
    given = parser.parse_args()
    if given.instructions:
        instructions()
        return
    found = uvloop.run(measure(given.rounds, given.requests))
    rows, lines = [], ["| gateway | µs of processor time a request | over the first | from | to |", "|---|---|---|---|---|"]
    for subject, each in found.items():
        over = sorted(one / plain for one, plain in zip(each, found[PLAIN], strict=True))
        ratio, us = statistics.median(over), statistics.median(each)
        rows += [Row(metric=metric, subject=subject, value=round(value, 3), unit=unit, n=given.rounds)
                 for metric, value, unit in (("cpu_us_request", us, "us"), ("over_plain", ratio, ""))]  # fmt: skip
        lines.append(f"| {subject} | {us:,.0f} | {ratio:.3f} | {over[len(over) // 4]:.3f} | {over[-1 - len(over) // 4]:.3f} |")
    write_rows("seen", rows)
    how = f"`python -m bench.seen --rounds {given.rounds} --requests {given.requests}`, {machine()}"
    refresh("seen", f"{how}; medians, and the middle half of the rounds.\n\n" + "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
