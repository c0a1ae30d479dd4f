"""A simulated fleet whose number of engines follows a scaler during the run.

The fleet file lists as many engines as there may ever be. An engine that is asked for serves after its cold start, with an empty cache; one
that leaves gets no new request, ends what it runs and is gone. It costs from the moment it was asked for until it is gone.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from routing.policy_instance import PolicyInstance
from routing.scaling import PoolLoad
from routing.simulation.decoders import Decoding
from routing.simulation.fleet import EventKind, SimulatedFleet, SimulatedFlight
from routing.simulation.fleet_file import FleetFile
from routing.simulation.turns import Dice, Workload

WINDOW_S: Final = 60.0
"""What scalers see of the past: the gateway's gauges look back as far."""
SAMPLE_S: Final = 1.0
"""How often it is noted which engines are busy."""


class ElasticView(msgspec.Struct, frozen=True):
    """What a scaler sees at one moment."""

    load: PoolLoad
    now: float
    requests_per_s: float
    """Requests that arrived in the last minute, for each second."""
    busy: float
    """Share of the last minute in which the engines that were up had something to compute."""


class Elasticity(msgspec.Struct, frozen=True):
    """How a fleet changes its size."""

    scaler: Callable[[ElasticView], int]
    """How many engines there should be."""
    start: int
    """Engines that are up at the beginning."""
    cold_start_s: float = 120.0
    every_s: float = 15.0
    """How often the scaler is asked; 15 s is the interval of Kubernetes."""


class ElasticFleet(SimulatedFleet):
    """One run of one workload on engines that come and go. `run` may be called once.

    Raises:
        ValueError: engines of this fleet file cannot come and go, or fewer are listed than are up at the beginning.
    """

    def __init__(
        self, fleet: FleetFile, workload: Workload, policy_instance: Callable[[], PolicyInstance], dice: Dice, elastic: Elasticity
    ) -> None:
        super().__init__(fleet, workload, policy_instance, dice)
        count = len(self.engines)
        if fleet.disaggregation is not None or fleet.faults or any(kind.lora_slots for kind in fleet.engines):
            raise ValueError("an elastic fleet takes no disaggregation, faults or lora_slots: remove them from the fleet file")
        if not 1 <= elastic.start <= count:
            raise ValueError(f"{elastic.start} engines are up at the beginning, and the fleet file lists {count}; start with 1 to {count}")
        self._elastic = elastic
        self._since: dict[int, float] = dict.fromkeys(range(elastic.start), 0.0)
        """When each engine that costs was asked for."""
        self._starting: dict[int, None] = {}
        self._leaving: dict[int, None] = {}
        self._spent_s = 0.0
        self.most = elastic.start
        """The most engines that cost at a time."""
        self._came: deque[float] = deque()
        self._firsts: deque[tuple[float, float]] = deque()
        self._prefilled: deque[tuple[float, float]] = deque()
        self._promises: deque[tuple[float, bool]] = deque()
        self._busy: deque[tuple[float, float]] = deque()
        for at in range(elastic.start, count):
            self._alive[at] = False
            for replica in self.replicas:
                replica.set_up(self.names[at], False, 0.0)
        self._plan(elastic.every_s, EventKind.CALL, self._scale)
        self._plan(SAMPLE_S, EventKind.CALL, self._sample)

    @property
    def engine_seconds(self) -> float:
        """What all engines cost until now, each from being asked for to being gone."""
        return self._spent_s + sum(self.now - since for since in self._since.values())

    @property
    def up(self) -> list[int]:
        """Engines that take requests."""
        return [at for at in self._since if at not in self._starting and at not in self._leaving]

    def _scale(self) -> None:
        wanted = max(self._elastic.scaler(self._view()), 1)
        present = [at for at in self._since if at not in self._leaving]
        for _ in range(wanted - len(present)):
            self._ask()
        for _ in range(len(present) - wanted):
            self._dismiss()
        self.most = max(self.most, len(self._since))
        self._plan(self.now + self._elastic.every_s, EventKind.CALL, self._scale)

    def _ask(self) -> None:
        free = next((at for at in range(len(self.engines)) if at not in self._since), None)
        if free is None:
            return  # no more machines: those that leave come free first
        self._since[free] = self.now
        self._starting[free] = None
        self._plan(self.now + self._elastic.cold_start_s, EventKind.CALL, partial(self._started, free, self.now))

    def _started(self, at: int, asked: float) -> None:
        if self._since.get(at) != asked or at not in self._starting:
            return  # it was dismissed meanwhile
        del self._starting[at]
        self._alive[at] = True
        self._health((at, True))

    def _dismiss(self) -> None:
        """The engine that was asked for last and has not started goes first, then the one that runs least."""
        if self._starting:
            at, _ = self._starting.popitem()
            self._gone(at)
            return
        at = min(self.up, key=lambda one: len(self.engines[one].running) + len(self.engines[one].waiting))
        self._leaving[at] = None
        self._health((at, False))
        self._empty(at)

    def _empty(self, at: int) -> None:
        engine = self.engines[at]
        if at in self._leaving and not engine.running and not engine.waiting:
            del self._leaving[at]
            self._alive[at] = False
            engine.lose_all(self.now)
            self._health((at, False))  # what it told of its cache while it left is forgotten too
            self._gone(at)

    def _gone(self, at: int) -> None:
        self._spent_s += self.now - self._since.pop(at)

    # what scalers see

    def _arrival(self, index: int) -> None:
        self._came.append(self.now)
        super()._arrival(index)

    def _begun(self, run: Decoding, now: float) -> None:
        super()._begun(run, now)
        flight: SimulatedFlight = run.turn  # type: ignore[assignment]  # engines do not look into it
        self._firsts.append((now, now - self.outcomes.arrived[flight.index]))
        self._prefilled.append((now, float(flight.turn.prompt_tokens - self.outcomes.cached[flight.index])))

    def _ended(self, run: Decoding, now: float) -> None:
        super()._ended(run, now)
        flight: SimulatedFlight = run.turn  # type: ignore[assignment]  # engines do not look into it
        index, slo = flight.index, self._fleet.slo
        ttft = self.outcomes.first[index] - self.outcomes.arrived[index]
        each = (now - self.outcomes.first[index]) / max(flight.turn.output_tokens - 1, 1)
        self._promises.append((now, ttft <= slo.ttft_s and each <= slo.tpot_s))
        if (at := self.outcomes.engine[index]) in self._leaving:
            self._plan(now, EventKind.CALL, partial(self._empty, at))  # the engine is in the middle of a step

    def _sample(self) -> None:
        up = self.up
        if up:
            self._busy.append((self.now, sum(bool(self.engines[at].running) for at in up) / len(up)))
        self._plan(self.now + SAMPLE_S, EventKind.CALL, self._sample)

    def _view(self) -> ElasticView:
        oldest = self.now - WINDOW_S
        while self._came and self._came[0] <= oldest:
            self._came.popleft()
        for dated in (self._firsts, self._promises, self._busy, self._prefilled):
            while dated and dated[0][0] <= oldest:
                dated.popleft()
        return ElasticView(self._load(), self.now, len(self._came) / min(WINDOW_S, self.now), _mean(share for _, share in self._busy))

    def _load(self) -> PoolLoad:
        """As the gateway's gauges make it of engines like vLLM, which do not say how many tokens wait."""
        up = self.up
        looks = [self.engines[at].look(self.now) for at in up]
        table = self.replicas[0].load_table
        rows = [table.row_of[self.names[at]] for at in up]
        firsts = sorted(seconds for _, seconds in self._firsts)
        rate = sum(1 / table.prefill_s_token[row] for row in rows)
        return PoolLoad(
            backends=len(up) + len(self._starting),
            up=len(up),
            telling=len(up),
            running=sum(running for running, *_ in looks),
            waiting=sum(waiting for _, waiting, *_ in looks),
            queued=sum(len(replica.queue) for replica in self.replicas),
            tokens_per_s=rate,
            kv_used=sum(usage for *_, usage in looks),
            kv_telling=len(up),
            slots=_mean(float(self._kinds[at].max_num_seqs) for at in up),
            ttft_p95_s=firsts[int(0.95 * len(firsts))] if firsts else None,
            error_s=max((table.residual_s[row] for row in rows), default=0.0),
            deficit=_mean(float(not met) for _, met in self._promises) if self._promises else None,
            answered=float(len(firsts)),
            prefilled=sum(tokens for _, tokens in self._prefilled) / (rate * min(WINDOW_S, self.now)) if rate else None,
        )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0
