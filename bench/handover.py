"""`python -m bench.handover --traces FOLDER`: what it is worth to name heirs for the prefixes of an engine that leaves.

Simulated: every so many minutes one engine, drawn at random, is told to leave. It gets no new request, ends what it runs, and its cache is
gone; another engine is asked for at the notice and serves 120 s later with an empty cache. Each arm meets the same arrivals and the same
engines leave.

- `today`: the router as it is. The first request of a prefix goes where it costs least, later ones know that it is there.
- `heir`: at the notice every prefix that no other engine holds gets an heir, by a rendezvous hash weighted by room in the KV cache, among
  the engines that hold the prefix before it, where any does. A request with such a prefix counts the heir as the backend of its
  conversation's last turn, so that it goes there unless that costs more than the router's `sticky_s`.
- `strict heir`: such a request goes to its heir whatever that costs.
- `KV moved`: the router as it is, and the heirs get the prefixes' KV at the notice, at no cost, with the memory for it until another engine
  serves: the upper bound of any hand-over.
- `nobody leaves`: the same fleet without any notice.

Figures are of the requests that arrive within a minute of a notice. `computed again`: tokens of prefixes that only the leaving engine held
and that were computed within five minutes of the notice; `twice`: those of them that had been computed since the notice already, which is
what heirs can save.
"""

import argparse
import hashlib
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import structs

from bench.fleet.workloads import capacity_of, case_of, dice, most_tokens
from bench.results_file import Row, refresh, write_rows
from routing.policy_instance import PolicyInstance, policy_instance
from routing.simulation.decoders import Decoding
from routing.simulation.figures import interval, quantile
from routing.simulation.fleet import EventKind, SimulatedFleet, SimulatedFlight
from routing.simulation.fleet_file import FleetFile
from routing.simulation.kv_cache import SimulatedKvCache
from routing.simulation.outcomes import RequestEnd
from routing.simulation.replica import Replica
from routing.simulation.traces import load
from routing.simulation.turns import Dice, TraceRequest, Workload

ARMS: Final = ("today", "heir", "strict heir", "KV moved", "nobody leaves")
COLD_START_S: Final = 120.0
WINDOW_S: Final = 60.0
"""After a notice, in which requests are scored."""
LOST_FOR_S: Final = 300.0
"""For how long it is noted what is computed again."""
WARM_UP: Final = 0.2
"""Share of a run before the first notice."""
SPARES: Final = 3
"""Engines beyond those that serve, so that those that leave keep none from coming."""


class Line(NamedTuple):
    """A workload on a fleet."""

    name: str
    case: str
    """The name of one of the workloads of `bench.fleet`."""
    lives_s: float
    """Seconds between two notices to the same engine, on the mean: with n engines, one leaves each nth part of it."""
    limit: int
    """Requests of a run at most."""


LINES: Final = (
    Line("conversation", "conversation", 960.0, 10_000),
    Line("synthetic", "synthetic", 960.0, 10_000),
    Line("agents", "agents", 2400.0, 1_500),
)


class Run(NamedTuple):
    line: Line
    engines: int
    load: float
    """Share of what the fleet can just follow."""
    arm: str
    seed: int
    gateways: int = 1


class Heirs:
    """What only the leaving engines held, and who is to have it next."""

    def __init__(self, parents: dict[int, int]) -> None:
        self._parents = parents
        self.lost: dict[int, tuple[float, int, str]] = {}
        """By block, of prefixes that only the leaving engine held: when the notice came, the family's first block, the heir."""
        self.computed: dict[int, int] = {}
        """How often each such block was computed since."""

    def name(self, blocks: Iterable[int], caches: Mapping[str, SimulatedKvCache], now: float) -> None:
        """Name the heirs of a leaving engine's blocks, whose parents come before them, among the engines with these caches: those that hold
        the prefix up to there, where any does."""
        alone = {block: block for block in blocks if not any(block in cache.blocks for cache in caches.values())}
        for block in alone:
            parent = self._parents.get(block)
            if parent in alone:
                alone[block] = alone[parent]
        heirs: dict[int, str] = {}
        for first in alone.values():
            if first not in heirs:
                holders = {name: cache for name, cache in caches.items() if self._parents.get(first) in cache.blocks}
                heirs[first] = heir_of(first, {name: cache.room / cache.total for name, cache in (holders or caches).items()})
        for block, first in alone.items():
            self.lost[block] = now, first, heirs[first]
            self.computed.pop(block, None)

    def of(self, chain: Iterable[int], now: float) -> str:
        """The heir of a prompt's prefix; empty for none."""
        for block in chain:
            if (found := self.lost.get(block)) is not None and now - found[0] <= LOST_FOR_S:
                return found[2]
        return ""


def heir_of(first: int, room: dict[str, float]) -> str:
    """The engine for a prefix, by a rendezvous hash: each engine gets prefixes in proportion to its room."""

    def score(name: str) -> float:
        drawn = int.from_bytes(hashlib.blake2b(f"{first} {name}".encode(), digest_size=8).digest())
        return -room[name] / math.log((drawn + 1) / 2**64 - 1e-18)

    return max(sorted(room), key=score)


class NamingReplica(Replica):
    """A gateway process that knows heirs."""

    heirs: Heirs
    strict = False
    now: Callable[[], float]

    def holder_of(self, turn: TraceRequest) -> str:
        heir = self.heirs.of(turn.chain, self.now())
        return heir if heir and self._backends[heir] in self._pool.up else super().holder_of(turn)

    def route(self, turn: TraceRequest, *others: Any) -> Any:
        heir = self.heirs.of(turn.chain, self.now()) if self.strict else ""
        whole = self._pool
        if heir and self._backends[heir] in whole.up:
            self._pool = structs.replace(whole, up=(self._backends[heir],))
        try:
            return super().route(turn, *others)
        finally:
            self._pool = whole


class Figures(NamedTuple):
    """The figures of the requests that arrived within a minute of a notice; seconds, shares and tokens of one run."""

    hit_rate: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    computed: float
    """Prompt tokens computed for them."""
    again: float
    twice: float
    requests: float
    notices: float


class LeavingFleet(SimulatedFleet):
    """One run on engines of which one leaves every so often. `run` may be called once."""

    def __init__(self, run: Run, fleet: FleetFile, workload: Workload, choose: Callable[[], PolicyInstance], rolls: Dice) -> None:
        names_heirs = run.arm in ("heir", "strict heir")
        super().__init__(fleet, workload, choose, rolls, replica=NamingReplica if names_heirs else Replica)
        self._run = run
        self._rng = rolls("leaving")
        self.notices: list[float] = []
        self.again = self.twice = 0
        self._leaving: dict[int, None] = {}
        self._serving = dict.fromkeys(range(run.engines))
        self._pages = self.engines[0].cache.total
        parents = {block: before for turn in workload.turns for before, block in pairwise((*turn.chain, *turn.answer))}
        self._heirs = Heirs(parents)
        for replica in self.replicas:
            if isinstance(replica, NamingReplica):
                replica.heirs, replica.strict, replica.now = self._heirs, run.arm == "strict heir", lambda: self.now
            for at in range(run.engines, len(self.engines)):
                replica.set_up(self.names[at], False, 0.0)
        for at in range(run.engines, len(self.engines)):
            self._alive[at] = False
        span = max(turn.at_s for turn in workload.turns)
        every_s = run.line.lives_s / run.engines
        at_s = WARM_UP * span + self._rng.random() * every_s
        while at_s < span:
            self._plan(at_s, EventKind.CALL, self._notice)
            at_s += every_s

    def _notice(self) -> None:
        self.notices.append(self.now)
        present = [at for at in self._serving if self._alive[at]]
        at = present[int(self._rng.random() * len(present))]
        if self._run.arm == "nobody leaves":
            return
        del self._serving[at]
        self._leaving[at] = None
        caches = {self.names[other]: self.engines[other].cache for other in present if other != at}
        self._heirs.name(list(self.engines[at].cache.blocks), caches, self.now)
        self._health((at, False))
        if self._run.arm == "KV moved":
            self._move(at, caches)
        self._empty(at)
        self._plan(self.now + COLD_START_S, EventKind.CALL, self._come)

    def _move(self, at: int, caches: dict[str, SimulatedKvCache]) -> None:
        """Give the heirs the blocks that only this engine has, with its memory."""
        lost, by_use = self._heirs.lost, self.engines[at].cache.by_use()
        for name, cache in caches.items():
            brought = cache.bring([block for block in by_use if block in lost and lost[block][::2] == (self.now, name)])
            self._cached((self.names.index(name), True, brought))

    def _come(self) -> None:
        free = next(at for at in range(len(self.engines)) if at not in self._serving and at not in self._leaving)
        for at in self._serving:
            engine = self.engines[at]
            self._cached((at, False, engine.cache.shrink(self._pages, engine.due_pages)))
        self._serving[free] = None
        self._alive[free] = True
        self._health((free, True))

    def _empty(self, at: int) -> None:
        engine = self.engines[at]
        if at in self._leaving and not engine.running and not engine.waiting:
            del self._leaving[at]
            self._alive[at] = False
            engine.lose_all(self.now)
            engine.cache.shrink(self._pages)
            self._health((at, False))  # what it told of its cache while it left is forgotten too

    def _begun(self, run: Decoding, now: float) -> None:
        super()._begun(run, now)
        flight: SimulatedFlight = run.turn  # type: ignore[assignment]  # engines do not look into it
        heirs, tokens = self._heirs, self.engines[0].block_tokens
        for block in flight.turn.chain[run.cached // tokens :]:
            if (lost := heirs.lost.get(block)) is not None and lost[0] <= now <= lost[0] + LOST_FOR_S:
                before = heirs.computed.get(block, 0)
                heirs.computed[block] = before + 1
                self.again += tokens
                self.twice += tokens * (before > 0)

    def _ended(self, run: Decoding, now: float) -> None:
        super()._ended(run, now)
        flight: SimulatedFlight = run.turn  # type: ignore[assignment]  # engines do not look into it
        if (at := self.outcomes.engine[flight.index]) in self._leaving:
            self._plan(now, EventKind.CALL, partial(self._empty, at))  # the engine is in the middle of a step

    def figures(self) -> Figures:
        """The figures of the run, which is over."""
        found, turns = self.outcomes, self._turns
        chosen = [
            index
            for index, state in enumerate(found.state)
            if state is RequestEnd.DONE and any(0.0 <= found.arrived[index] - notice < WINDOW_S for notice in self.notices)
        ]
        ttft = sorted(found.first[index] - found.arrived[index] for index in chosen)
        prompt, cached = (sum(values) for values in ([turns[i].prompt_tokens for i in chosen], [found.cached[i] for i in chosen]))
        quantiles = (quantile(ttft, share) for share in (0.5, 0.95, 0.99))
        mean = sum(ttft) / max(1, len(ttft))
        counts = (prompt - cached, self.again, self.twice, len(chosen), len(self.notices))
        return Figures(cached / max(1, prompt), mean, *quantiles, *map(float, counts))


def measured(run: Run, traces: Path) -> Figures:
    """One run."""
    case = case_of(run.line.case)
    (kind,) = case.fleet["engines"]
    engines = [{**kind, "count": run.engines + SPARES}]
    fleet = FleetFile.model_validate({"engines": engines, "replicas": run.gateways})
    workload = load(traces / case.source, dice(run.seed)).without_oversize(most_tokens(case)).first(run.line.limit).with_answers()
    workload = workload.scaled(capacity_of(case) * run.engines / kind["count"] * run.load)
    simulated = LeavingFleet(run, fleet, workload, partial(policy_instance, "predicted_latency"), dice(run.seed))
    simulated.run()
    return simulated.figures()


Measure = Callable[[list[Run]], list[Figures]]
NAMES: Final = ("hit_rate", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "computed", "again", "twice")


def compared(
    lines: Iterable[Line], engines: Iterable[int], load: float, seeds: range, measure: Measure, gateways: int
) -> tuple[list[str], list[Row]]:
    """The table's lines and the rows. What differs from `today` by more than chance is marked with its interval."""
    grid = [Run(line, count, load, arm, seed, gateways) for line in lines for count in engines for arm in ARMS for seed in seeds]
    found = dict(zip(grid, measure(grid), strict=True))
    text = [
        "| workload | engines | arm | hit rate | TTFT mean | p50 | p95 | p99 | computed | again | twice | TTFT mean against today |",
        "|---|" + "---|" * 11,
    ]
    rows: list[Row] = []
    for line, count, arm in dict.fromkeys((run.line, run.engines, run.arm) for run in grid):
        each = [found[Run(line, count, load, arm, seed, gateways)] for seed in seeds]
        today = [found[Run(line, count, load, ARMS[0], seed, gateways)] for seed in seeds]
        mean = Figures(*(sum(values) / len(each) for values in zip(*each, strict=True)))
        times = [100 * (one.ttft_mean_s / other.ttft_mean_s - 1) for one, other in zip(each, today, strict=True)]
        within = interval(times, random.Random(0))
        against = f"{sum(times) / len(times):+.1f} % ({within[0]:+.1f} to {within[1]:+.1f})" if within and arm != ARMS[0] else ""
        seconds = " | ".join(f"{value:.3f} s" for value in mean[1:5])
        tokens = " | ".join(f"{value / 1e6:.2f} M" for value in mean[5:8])
        text.append(f"| {line.name} | {count} | {arm} | {mean.hit_rate:.2%} | {seconds} | {tokens} | {against} |")
        units = dict.fromkeys(NAMES, "tokens") | dict.fromkeys(NAMES[1:5], "s") | {"hit_rate": "share"}
        rows += [
            Row(metric=f"{name}:{line.name}:{count}", subject=arm, value=round(getattr(mean, name), 5), unit=units[name], n=len(each))
            for name in NAMES
        ]
    return text, rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.handover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder with the public traces")
    parser.add_argument("--lines", default=",".join(line.name for line in LINES), help="workloads, separated by commas")
    parser.add_argument("--engines", default="4,8,16", help="sizes of the fleet, separated by commas")
    parser.add_argument("--load", type=float, default=0.6, help="share of what the fleet can just follow")
    parser.add_argument("--gateways", type=int, default=1, help="gateway processes")
    parser.add_argument("--first-seed", type=int, default=114)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/numbers.md")
    arguments = parser.parse_args()
    lines = [line for line in LINES if line.name in arguments.lines.split(",")]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    engines = [int(count) for count in arguments.engines.split(",")]
    with ProcessPoolExecutor(arguments.jobs) as processes:

        def measure(runs: list[Run]) -> list[Figures]:
            return list(processes.map(partial(measured, traces=arguments.traces), runs))

        text, rows = compared(lines, engines, arguments.load, seeds, measure, arguments.gateways)
    made = "\n".join([f"`{parser.prog}`, simulated; load {arguments.load:g}, seeds {seeds[0]} to {seeds[-1]}.", "", *text])
    print(made)
    if arguments.write:
        refresh("handover", made)
        write_rows("handover", rows)


if __name__ == "__main__":
    main()
