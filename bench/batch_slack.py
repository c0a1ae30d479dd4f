"""What batches do to the first tokens of other requests, in a simulated fleet: `python -m bench.batch_slack`.

Two engines (Llama-3.1-8B on an H100) get requests of callers at random moments, sent to the engine with the fewest in flight, and an
endless batch beside them. Virtual time; the same arrivals in every run of a seed. Subjects: callers alone, batches in the room that others
leave (`gateway.batches.slots.has_slack`, as the gateway asks it), and batches that always have `max_in_flight` lines in flight.
"""

import argparse
import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from backends.simengine.batching import Batcher, EngineStep, SimSequence
from backends.simengine.settings import PRESETS
from bench.results_file import percentile, rows_of, write_rows
from gateway.batches.slots import has_slack
from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import Charge, LoadTable

ENGINES = ("a", "b")
MAX_IN_FLIGHT = 16
"""The setting's default."""
SHARE = 0.5
LOOK_S = 0.05
"""How often a batch that found no room looks again (`gateway.batches.run_batch.LOOK_S`)."""
REPORT_S = 0.1
WARM_S = 20.0
CAPACITY_PER_S = 2 * 26.0
"""Requests a second of callers that the two engines answer with first tokens below a second."""
LOADS = (0.2, 0.4, 0.6)

HasRoom = Callable[[Pool, LoadTable, int], bool]


def in_slack(pool: Pool, table: LoadTable, mine: int) -> bool:
    """As the gateway does it, nobody waiting in its queue."""
    return mine < MAX_IN_FLIGHT and has_slack(pool, table, 0, SHARE, mine)


def always(_pool: Pool, _table: LoadTable, mine: int) -> bool:
    """No regard for others."""
    return mine < MAX_IN_FLIGHT


def never(_pool: Pool, _table: LoadTable, _mine: int) -> bool:
    """No batches."""
    return False


@dataclass
class Run:
    """One run of the fleet."""

    rng: random.Random
    has_room: HasRoom
    limit: float
    """Requests that each engine is known to bear; infinite where it is not known."""
    now: float = 0.0
    mine: int = 0
    lines: int = 0
    first_tokens: list[float] = field(default_factory=list)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engines = {name: Batcher(PRESETS["h100-8b"]) for name in ENGINES}
        members = tuple(Backend(name, "p", Availability.UP, "") for name in ENGINES)
        self.pool = Fleet({"p": Pool("p", "m", "1", "vllm", members)}).pools["p"]
        self.table = LoadTable(ENGINES)
        for name in ENGINES:
            if self.limit < inf:
                self.table.set_limit(name, self.limit, slots=self.limit)
        self.busy = dict.fromkeys(ENGINES, False)
        self.asked: dict[SimSequence, tuple[float, bool, Charge]] = {}
        self.lengths = random.Random(self.rng.random())
        self.of_lines = random.Random(self.rng.random())
        self._order = iter(range(10**9))

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self.events, (when, next(self._order), what))

    def run(self, per_s: float, until_s: float) -> None:
        """Serve until a moment."""
        self.at(self.rng.expovariate(per_s), lambda: self._arrive(per_s))
        self.at(0.0, self._report)
        self.at(0.0, self._look)
        while self.events and self.events[0][0] < until_s:
            self.now, _, what = heapq.heappop(self.events)
            what()

    def _arrive(self, per_s: float) -> None:
        self.at(self.now + self.rng.expovariate(per_s), lambda: self._arrive(per_s))
        self._send(self.lengths, is_line=False)

    def _send(self, lengths: random.Random, *, is_line: bool) -> None:
        prompt, output = int(min(8000, lengths.lognormvariate(6.5, 0.7))) + 1, int(min(1000, lengths.lognormvariate(4.8, 0.6))) + 1
        name = min(ENGINES, key=self.table.in_flight)
        sequence = self.engines[name].sequence([lengths.randrange(2**30)] * prompt, output)
        self.asked[sequence] = (self.now, is_line, self.table.charge(name, prompt, prompt + output, self.now))
        self.engines[name].add(sequence)
        self._step(name)

    def _step(self, name: str) -> None:
        if self.busy[name]:
            return
        step = self.engines[name].begin()
        if step is not None:
            self.busy[name] = True
            self.at(self.now + step.duration_ms / 1000, lambda: self._end(name, step))

    def _end(self, name: str, step: EngineStep) -> None:
        self.busy[name] = False
        for sequence in self.engines[name].end(step):
            asked_at, is_line, charge = self.asked[sequence]
            if sequence.produced == 1 and not is_line:  # the answer of a line is not streamed, so nobody sees its first token
                self.table.begun(charge)
                if asked_at >= WARM_S:
                    self.first_tokens.append(self.now - asked_at)
            if sequence.finished:
                del self.asked[sequence]
                self.table.release(charge)
                if is_line:
                    self.mine -= 1
                    self.lines += self.now >= WARM_S
        self._fill()
        self._step(name)

    def _report(self) -> None:
        for name, engine in self.engines.items():
            values = {"running": len(engine.running), "waiting": len(engine.waiting), "queued_tokens": engine.queued_tokens}
            self.table.report(name, **values, kv_usage=engine.kv_usage, kv_capacity=440_000.0, read_at=self.now, asked_at=self.now)
        self.at(self.now + REPORT_S, self._report)

    def _look(self) -> None:
        self._fill()
        self.at(self.now + LOOK_S, self._look)

    def _fill(self) -> None:
        while self.has_room(self.pool, self.table, self.mine):
            self.mine += 1
            self._send(self.of_lines, is_line=True)


def measured(seconds: float, seeds: range) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Figures by metric, subject and unit."""
    subjects: dict[str, tuple[HasRoom, float]] = {
        "callers alone": (never, inf),
        "batches in slack": (in_slack, inf),
        "batches always": (always, inf),
    }
    for load in LOADS:
        for seed in seeds:
            alone = 0.0
            for name, (has_room, limit) in subjects.items():
                run = Run(random.Random(seed), has_room, limit)
                run.run(load * CAPACITY_PER_S, WARM_S + seconds)
                p99_s = percentile(run.first_tokens, 0.99)
                alone = alone or p99_s
                yield (f"ttft_p50_ms@{load:g}", name, "ms"), 1000 * percentile(run.first_tokens, 0.5)
                yield (f"ttft_p99_ms@{load:g}", name, "ms"), 1000 * p99_s
                yield (f"ttft_p99_moves@{load:g}", name, "%"), 100 * (p99_s / alone - 1)
                yield (f"lines_s@{load:g}", name, "1/s"), run.lines / seconds


def main() -> None:
    """Measure, write the rows and print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    found: dict[tuple[str, str, str], list[Any]] = {}
    for key, value in measured(asked.seconds, range(asked.seeds)):
        found.setdefault(key, []).append(value)
    rows = rows_of(found)
    write_rows("batch_slack", rows)
    for row in rows:
        print(f"{row['metric']:24} {row['subject']:36} {row['value']:10.2f} {row['unit']}")


if __name__ == "__main__":
    main()
