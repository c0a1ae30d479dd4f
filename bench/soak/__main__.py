"""`python -m bench.soak`: thirty minutes at 60 % of what the engines can answer, and every second something fails.

Faults: engines are killed and started again, frozen, or told to answer wrongly; callers leave or hardly read; the counter store stops or
loses everything. In the first fifth the gateway is reloaded too; the worker that is there then stays, and what it holds when all is quiet
at the end is compared with what it held when all was quiet after that. Both times the engines are stopped: idle connections to engines stay
open as long as an engine keeps them, so their number at one moment says nothing, and without engines there are none.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec

from backends.simengine.faults import FAULTS
from bench.overhead.processes import LOAD_CPU, start, wait_for
from bench.overload.load import Plan, Sample
from bench.overload.plan import Phase, planned
from bench.results_file import Row, machine, refresh, write_rows
from bench.soak.callers import leaves, reads_slowly
from bench.soak.parts import NAMES, TENANTS, TOKEN, Parts, Process, parts
from bench.soak.readings import Held, held, rss_mib, slope

SHARE = 0.6
SATURATED = 4.0
"""The first guess of the load that is measured for the capacity, over the engines' speed: more than they can answer."""
RELOADS = 0.2
"""Share of the time in which the gateway is reloaded."""
WARM = 0.15
"""Share of the rest before memory counts: caches and indexes fill."""
EVERY_RELOAD = 20
"""Faults from one reload to the next."""
STILL_S = 5.0
"""Between two readings: longer than a poll or a probe of an engine that is away."""
QUIET_S = 120.0
"""How long everything may take to be given back."""
MORE_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Threads that may be there beyond the beginning: the event loop's executor makes a thread when a file is to be read and all it has are
busy, up to so many."""
MORE_DATABASES = 2 * 4
"""Files of SQLite that may be there beyond the beginning: the pool keeps up to five connections, and makes the second one when the first is
busy."""
MAY_GROW = {"more_threads": MORE_THREADS, "more_databases": MORE_DATABASES}
HARMLESS = {"exit_process", "lose_kv_events", "lose_load_reports"}
"""Faults of the simulated engine that need something that is not set up here, or that are a kill of their own."""
WEIGHTS = {
    "engine killed": 1,
    "engine frozen": 2,
    "engine wrong": 6,
    "caller leaves": 6,
    "caller reads slowly": 3,
    "store stopped": 1,
    "store emptied": 1,
}


class Faults:
    """One a second, drawn from a seed."""

    def __init__(self, parts: Parts, seed: int) -> None:
        self._parts = parts
        self._dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._out: set[Process] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, *, reloads: bool) -> None:
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            name = self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if reloads and done % EVERY_RELOAD == EVERY_RELOAD // 2:
                name = "reload"
            done += 1
            self.counts[name] += 1
            task = asyncio.create_task(self._one(name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(max(0.0, began + done - time.monotonic()))
        await asyncio.gather(*self._tasks)

    async def _one(self, name: str) -> None:
        key = self._dice.choice(self._parts.keys)
        engine = self._dice.choice(self._parts.engines)
        with contextlib.suppress(ConnectionError):
            match name:
                case "reload":
                    self._parts.reload()
                case "caller leaves":
                    await leaves(self._parts.port, key, self._dice)
                case "caller reads slowly":
                    await reads_slowly(self._parts.port, key, self._dice)
                case "engine wrong":
                    await asyncio.to_thread(self._misbehave, self._parts.engines.index(engine))
                case "engine killed" | "store emptied":
                    await self._killed(engine if name == "engine killed" else self._parts.store)
                case _:
                    await self._frozen(engine if name == "engine frozen" else self._parts.store)

    def _may_stop(self, process: Process) -> bool:
        """One that is out already stays so, and of the engines at most two are."""
        return process not in self._out and (process is self._parts.store or len(self._out - {self._parts.store}) < 2)

    async def _killed(self, process: Process) -> None:
        if self._may_stop(process):
            self._out.add(process)
            await asyncio.to_thread(process.kill)
            await asyncio.sleep(self._dice.uniform(0.5, 4.0))
            process.start()
            self._out.discard(process)

    async def _frozen(self, process: Process) -> None:
        if self._may_stop(process):
            self._out.add(process)
            process.freeze(on=True)
            await asyncio.sleep(self._dice.uniform(0.2, 5.0))
            process.freeze(on=False)
            self._out.discard(process)

    def _misbehave(self, number: int) -> None:
        name = self._dice.choice(sorted(FAULTS.keys() - HARMLESS))
        body = json.dumps({"next": [{"name": name, "delay_s": 2.0, "bytes_per_s": 200.0}]}).encode()
        with contextlib.suppress(OSError):  # it may be out
            urllib.request.urlopen(f"{self._parts.urls[number]}/sim/faults", body, timeout=2).close()


async def load(one: Parts, phases: list[Phase], seed: str, patience_s: float = 10.0) -> list[Sample]:
    """Run the generator."""
    asked, got = one.home / f"plan-{seed}.json", one.home / f"samples-{seed}.jsonl"
    asked.write_bytes(msgspec.json.encode(Plan(one.keys, planned(seed, phases, range(TENANTS)), patience_s, retries=1)))
    process = start([sys.executable, "-m", "bench.overload.load", one.url, str(asked), str(got)], LOAD_CPU, one.home / "load.log")
    try:
        if await asyncio.to_thread(process.wait) != 0:
            raise RuntimeError((one.home / "load.log").read_text()[-2000:])
    finally:
        if process.poll() is None:
            process.terminate()
    return [msgspec.json.decode(line, type=Sample) for line in got.read_bytes().splitlines()]


async def memory(one: Parts, seconds: float) -> list[tuple[float, float, int]]:
    """(seconds, MiB, pid) every two seconds."""
    began, points = time.monotonic(), []
    while (at := time.monotonic() - began) < seconds:
        with contextlib.suppress(OSError, IndexError):  # between two workers
            points.append((at, rss_mib(pid := one.worker()), pid))
        await asyncio.sleep(2.0)
    return points


async def quiet(one: Parts, base: Held | None) -> Held:
    """What is held with the engines stopped, when it is what it was before, or nothing changes any more, or the time for that is over.
    Threads may differ: executors make them as they need them, and keep them."""
    for engine in one.engines:
        engine.kill()
    ends, last = time.monotonic() + QUIET_S, Held(*[-1] * len(Held._fields))
    while True:
        await asyncio.sleep(STILL_S)
        now = last
        with contextlib.suppress(OSError):  # the admin process may be another one soon
            now = await asyncio.to_thread(held, one.worker(), one.admin, TOKEN, NAMES)
        compared = last if base is None else base
        if now._replace(threads=compared.threads) == compared or time.monotonic() > ends:
            break
        last = now
    for engine, url in zip(one.engines, one.urls, strict=True):
        engine.start()
        await asyncio.to_thread(wait_for, url + "/health")
    return now


async def soak(arguments: argparse.Namespace, one: Parts) -> list[Row]:
    seconds = 60.0 * arguments.minutes
    guess = SATURATED * 16 * arguments.engine_speed * len(one.engines)
    probe = await load(one, [Phase(12.0, guess)], "probe", 60.0)
    capacity = sum(sample.how == "ok" and 4.0 <= sample.end_s < 12.0 for sample in probe) / 8.0
    print(f"capacity {capacity:.1f} requests/s", flush=True)
    faults, first_s = Faults(one, arguments.seed), RELOADS * seconds
    early, _ = await asyncio.gather(load(one, [Phase(first_s, SHARE * capacity)], "first"), faults.run(first_s, reloads=True))
    base = await quiet(one, None)
    print(f"after the reloads {dict(Counter(sample.how for sample in early))}; when all is quiet {base}", flush=True)
    rest_s = seconds - first_s
    samples, points, _ = await asyncio.gather(
        load(one, [Phase(rest_s, SHARE * capacity)], "rest"), memory(one, rest_s), faults.run(rest_s, reloads=False)
    )
    after = await quiet(one, base)
    return report(arguments, base, after, [*early, *samples], points, faults.counts, capacity)


def report(
    arguments: argparse.Namespace,
    base: Held,
    after: Held,
    samples: list[Sample],
    points: list[tuple[float, float, int]],
    counts: Counter[str],
    capacity: float,
) -> list[Row]:
    warm = [(at / 60, mib) for at, mib, _ in points if at >= WARM * points[-1][0]]
    outcomes = Counter(sample.how for sample in samples)
    figures: dict[str, tuple[float, str, int]] = {
        "minutes": (arguments.minutes, "min", 1),
        "capacity_per_s": (capacity, "1/s", 1),
        "requests": (len(samples), "requests", 1),
        "answered_share": (outcomes["ok"] / len(samples), "share", len(samples)),
        "workers_lost": (len({pid for _, _, pid in points}) - 1.0, "processes", 1),
        "faults": (sum(counts.values()), "faults", 1),
        "rss_slope_mib_min": (slope(warm), "MiB/min", len(warm)),
        "rss_end_mib": (warm[-1][1], "MiB", 1),
        **{
            f"more_{name}": (float(now - before), "beyond the beginning", 1)
            for name, now, before in zip(Held._fields, after, base, strict=True)
        },
    }
    rows = [Row(metric=name, subject="tidegate", value=round(value, 4), unit=unit, n=n) for name, (value, unit, n) in figures.items()]
    lines = ["| | |", "|---|---|", *(f"| `{row['metric']}` | {row['value']:g} {row['unit']} |" for row in rows)]
    text = "\n".join(lines) + f"\n\nFaults: {', '.join(f'{count} x {name}' for name, count in sorted(counts.items()))}. {machine()}."
    print(text)
    print(dict(outcomes))
    if not arguments.dry:
        print(f"wrote {write_rows('soak', rows)}")
        refresh("soak", text)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--engine-speed", type=float, default=0.5, help="1 is an H100 with an 8B model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="an empty folder to leave logs and samples in")
    parser.add_argument("--dry", action="store_true", help="print only, write no rows and no table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with parts(arguments.keep or Path(folder), arguments.engine_speed) as one:
            rows = {row["metric"]: row["value"] for row in asyncio.run(soak(arguments, one))}
    leaked = {
        name: value
        for name, value in rows.items()
        if name.startswith(("more_", "workers_")) and value != 0 and not 0 < value <= MAY_GROW.get(name, 0)
    }
    for name, value in leaked.items():
        print(f"{name}: {value:+g}")
    grows = rows["rss_slope_mib_min"] > 1.0
    if grows:
        print(f"memory grows by {rows['rss_slope_mib_min']:.2f} MiB a minute")
    return 1 if leaked or grows else 0


if __name__ == "__main__":
    sys.exit(main())
