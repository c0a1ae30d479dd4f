"""`python -m bench.quota`: what deciding on every limit of a request costs a gateway: the time until the answer, and CPU.

Four scopes with four limits each are 16 lines in one group. A request is an admission and its settlement, with the building of
its Hold; CPU is the gateway process's alone. Valkey runs beside it, on a unix socket and a core of its own.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import uvloop

from bench.quota.subjects import SUBJECTS, Subject
from bench.results_file import machine, percentile, refresh, rows_of, table, write_rows
from domain.identity import TenantId
from tenancy.hold import Admitted, Hold
from tenancy.limits import MAX_AMOUNT, MAX_RATE, Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.ports import Counters
from tests.valkey_server import valkey_server

SCOPES = [Scope(Level.TENANT, "acme"), Scope(Level.PROJECT, "acme/app"), Scope(Level.KEY, "k7Q2mZ4xw1"), Scope(Level.USER, "acme")]
LIMITS = [
    (Meter.REQUESTS, Window.MINUTE, MAX_RATE),
    (Meter.TOKENS, Window.MINUTE, MAX_RATE),
    (Meter.CONCURRENT_REQUESTS, Window.NOW, 100_000),
    (Meter.COST_NANOUSD, Window.MONTH, MAX_AMOUNT),
]
LABEL = "d41d8cd98f00b204e9800998ecf8427e"
WANTS, USED = Amounts(600, 400, 1_000_000, 15_000), Amounts(600, 120, 720_000, 9_000)
METRICS = ["cpu_us_c1", "cpu_us_c64", "admit_p50_us_c1", "admit_p99_us_c1", "admit_p50_us_c64", "admit_p99_us_c64"]


def lines() -> Group:
    """16 lines that refuse nothing here."""
    limits = [Limit(scope, meter, window, amount) for scope in SCOPES for meter, window, amount in LIMITS]
    return Group("acme", tuple(line_of(limit, 0.0, LABEL if limit.scope.level is Level.USER else "") for limit in limits))


async def load(counters: Counters, concurrency: int, requests: int, name: str) -> tuple[float, list[float]]:
    """CPU seconds per request, and how long each admission took, in seconds."""
    group, took = lines(), []

    async def caller(caller_id: int) -> None:
        for n in range(requests // concurrency):
            hold = Hold(f"{name}-{caller_id}-{n}", TenantId("acme"), WANTS, (group,))
            begun = time.perf_counter()
            answer = await counters.admit(hold)
            took.append(time.perf_counter() - begun)
            if not isinstance(answer, Admitted):
                raise SystemExit(f"refused by {answer.line.key}: the figures would be of refusals")
            await counters.settle(hold, USED)

    before = time.process_time()
    await asyncio.gather(*(caller(n) for n in range(concurrency)))
    return (time.process_time() - before) / requests, took


async def measure(subject: Subject, socket: Path, requests: int, round_: int) -> dict[str, float]:
    """One round of one subject, in microseconds."""
    figures = {}
    for concurrency in (1, 64):
        async with subject(socket, concurrency) as counters:
            await load(counters, concurrency, requests // 10, f"warm-{round_}-{concurrency}")
            cpu_s, took = await load(counters, concurrency, requests, f"{round_}-{concurrency}")
        figures[f"cpu_us_c{concurrency}"] = cpu_s * 1e6
        figures[f"admit_p50_us_c{concurrency}"] = percentile(took, 0.5) * 1e6
        figures[f"admit_p99_us_c{concurrency}"] = percentile(took, 0.99) * 1e6
    return figures


def main() -> None:
    """Measure in turns, and refresh the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=6_400, help="per subject, concurrency and round")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="of them, by comma")
    given = parser.parse_args()
    measured: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        os.sched_setaffinity(0, {cores[-1]})
        with valkey_server(Path(folder)) as socket:
            os.sched_setaffinity(0, {cores[0]})
            for round_ in range(given.rounds):
                for name in given.subjects.split(","):
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        figures = runner.run(measure(SUBJECTS[name], socket, given.requests, round_))
                    for metric, value in figures.items():
                        measured[metric, name, "us"].append(value)
    rows = rows_of(measured)
    write_rows("quota", rows)
    text = (
        f"`python -m bench.quota --rounds {given.rounds}`, {machine()}; medians of {given.rounds} rounds of {given.requests:,} requests "
        f"of 16 lines, ratios to memory.\n\n{table(rows, METRICS, 'memory')}"
    )
    refresh("quota", text)
    print(text)


if __name__ == "__main__":
    main()
