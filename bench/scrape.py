"""`python -m bench.scrape`: how long a scrape holds a worker's event loop, in slices and in one go, and what the page then costs the admin
process.

Seconds are those that the processor worked for the thread, so that other work on the machine does not count; medians of many scrapes.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import msgspec

from bench.results_file import Row, machine, refresh, write_rows
from domain.usage import Usage
from gateway.process.children import settle_memory
from gateway.record import GAP_BOUNDS_S, SERVICE_LEVELS, Record
from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.families import FAMILIES
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import MetricsSnapshot, merge, slices

TENANTS, MODELS, BACKENDS = 1000, 20, 4
WORKERS = 4
RECORD = Record(
    request_id="r",
    at_unix=1.7e9,
    outcome="ok",
    status=200,
    duration_s=0.3,
    overhead_s=0.0,
    endpoint="/v1/chat/completions",
    attempts=1,
    stream=True,
    usage=Usage(100, 20, 64),
    closing="settle",
    ttft_s=0.25,
    events=20,
    decode_s=0.38,
    gaps=tuple(19 if at == 5 else 0 for at in range(len(GAP_BOUNDS_S) + 1)),
    cost_nanousd=5,
    soft_limits=("rpm",),
    cache="miss",
    promises=tuple((level, True) for level in SERVICE_LEVELS),
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
)


def crowded() -> Metrics:
    """A worker that has served each of the tenants from each of the models."""
    metrics = Metrics([f"model-{at}" for at in range(MODELS)], providers={f"pool-{at}": "vllm" for at in range(MODELS)})
    for tenant in range(TENANTS):
        for model in range(MODELS):
            names = {"model": f"model-{model}", "pool": f"pool-{model}", "backend": f"b-{model}-{tenant % BACKENDS}"}
            metrics.observe(msgspec.structs.replace(RECORD, tenant=f"tenant-{tenant}", **names))
    return metrics


def full() -> Metrics:
    """A worker with every family at its ceiling, which no traffic makes."""
    metrics = crowded()
    for family in FAMILIES:
        cells = metrics._cells[family.name]
        for at in range(4000):
            labels = tuple(f"{label}-number-{at}" for label in family.labels)
            cell = cells.cell((*labels, *(f"{label}-{at % family.closed_combinations}" for label in family.closed)))
            for place in range(len(cell)):
                cell[place] += at + 0.5
            if family.bounds and len(cells.exemplars) < len(cells.cells):
                cells.slots((*labels, *(f"{label}-{at % family.closed_combinations}" for label in family.closed)))[:] = [
                    (RECORD.trace_id, 0.5, 1.7e9)
                ] * (len(family.bounds) + 1)
    return metrics


def seconds(work: Callable[[], object]) -> float:
    """The processor's time for one call."""
    began_at = time.thread_time()
    work()
    return time.thread_time() - began_at


def held(metrics: Metrics) -> list[float]:
    """The processor's time of each slice of one scrape."""
    times = []
    began_at = time.thread_time()
    for snapshot in slices(metrics.families(), metrics.totals()):
        if snapshot is not None:
            msgspec.msgpack.encode(snapshot)
        now = time.thread_time()
        times.append(now - began_at)
        began_at = now
    return times


def measure(name: str, metrics: Metrics, rounds: int) -> list[Row]:
    """The figures of one worker, whose garbage is collected as in a worker."""
    settle_memory()
    payload = msgspec.msgpack.encode(metrics.snapshot())
    whole, longest, number, page = [], [], 0, []
    for _ in range(rounds):
        whole.append(seconds(lambda: msgspec.msgpack.encode(metrics.snapshot())))
        times = held(metrics)
        longest.append(max(times))
        number = len(times)
    for _ in range(max(3, rounds // 20)):
        snapshots = [msgspec.msgpack.decode(payload, type=MetricsSnapshot) for _ in range(WORKERS)]
        page.append(seconds(lambda snapshots=snapshots: render(Scrape(merge(snapshots), (), None, WORKERS, "0"))))  # type: ignore[misc]
    figures = (
        ("scrape_bytes", float(len(payload)), "bytes"),
        ("scrape_whole_ms", median(whole) * 1000, "ms"),
        ("scrape_slices", float(number), "slices"),
        ("scrape_longest_slice_ms", median(longest) * 1000, "ms"),
        ("scrape_worst_slice_ms", max(longest) * 1000, "ms"),
        ("scrape_page_ms", median(page) * 1000, "ms"),
    )
    return [Row(metric=metric, subject=name, value=round(value, 3), unit=unit, n=rounds) for metric, value, unit in figures]


def main() -> None:
    """Measure both workers and refresh the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    rows = measure(f"{TENANTS:,} tenants, {MODELS} models", crowded(), given.rounds)
    rows += measure("every family at its ceiling", full(), given.rounds)
    write_rows("scrape", rows)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    lines = ["| worker | " + " | ".join(f"`{metric}`" for metric in metrics) + " |", "|---|" + "---|" * len(metrics)]
    for subject in dict.fromkeys(row["subject"] for row in rows):
        cells = [f"{row['value']:,.6g}" for row in rows if row["subject"] == subject]
        lines.append(f"| {subject} | " + " | ".join(cells) + " |")
    table = "\n".join(lines)
    print(table)
    refresh("scrape", f"`python -m bench.scrape --rounds {given.rounds}`, {machine()}.\n\n{table}")


if __name__ == "__main__":
    main()
