"""The event loop of the simulator: turns arrive, replicas route them, engines step, signals travel, faults happen; in virtual time,
repeatable for a seed.

Events of one moment happen in the order of `Kind`, then in the order they were scheduled, so nothing depends on a dict's or heap's order.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from routing.choosing import Choosing
from routing.simulation.decoders import Run
from routing.simulation.engine import IDLE, Engine
from routing.simulation.fleet_file import EngineFault, FleetFile
from routing.simulation.flights import Flight, Kind
from routing.simulation.outcomes import Outcomes, State, none_yet
from routing.simulation.replica import Replica
from routing.simulation.shelf import Shelf, adapters_for
from routing.simulation.token_limits import TokenLimits
from routing.simulation.turns import Dice, Workload

MAX_RETRIES: Final = 1
"""Retries per request, before its first token, as in the gateway's retry budget."""
PROGRESS_EVERY: Final = 200
"""Ended requests between two calls of `progress`."""


class Fleet:
    """One run of one workload under one policy. `run` may be called once."""

    def __init__(
        self,
        fleet: FleetFile,
        workload: Workload,
        choosing: Callable[[], Choosing],
        dice: Dice,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._fleet = fleet
        self._turns = workload.turns
        self._progress = progress
        self._kinds = [kind for kind in fleet.engines for _ in range(kind.count)]
        self.names = [f"engine-{i}" for i in range(len(self._kinds))]
        self._spread = dice("replicas")
        self.replicas = [Replica(self.names, fleet, workload.block_tokens, choosing(), dice(f"replica {i}")) for i in range(fleet.replicas)]
        self.engines = [self._engine(i, workload.block_tokens) for i in range(len(self._kinds))]
        self._shelves = [Shelf(kind.lora_slots, kind.lora_load_s) for kind in self._kinds]
        self._alive = [True] * len(self.engines)
        self._planned = [-1] * len(self.engines)
        self._followers: dict[int, list[int]] = defaultdict(list)
        self._terms = fleet.disaggregation.terms(pairs_whole=True) if fleet.disaggregation else None
        self._limits = TokenLimits(fleet.tenants)
        self._heap: list[tuple[float, int, int, Any]] = []
        self._number = 0
        self._left = len(self._turns)
        self.outcomes: Outcomes = none_yet(len(self._turns))
        self.now = 0.0

    def _engine(self, at: int, block_tokens: int) -> Engine:
        kind = self._kinds[at]
        limits = {"max_num_seqs": kind.max_num_seqs, "token_budget": kind.token_budget}
        engine = Engine(kind.timing, block_tokens, **limits, by_priority=kind.by_priority, begun=self._begun, ended=self._ended)
        if self._fleet.signals.kv_events:
            engine.cache.stored = lambda hashes: self._publish(at, True, hashes)
            engine.cache.removed = lambda hashes: self._publish(at, False, hashes)
        return engine

    def _plan(self, at: float, kind: Kind, event: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at, kind, self._number, event))

    def run(self) -> Outcomes:
        """Run until every turn has ended."""
        for index, turn in enumerate(self._turns):
            if turn.after >= 0:
                self._followers[turn.after].append(index)
            else:
                self._plan(turn.at_s, Kind.ARRIVAL, index)
        for fault in self._fleet.faults:
            self._plan(fault.at_s, Kind.FAULT, (fault, True))
        for at in range(len(self.engines)):
            # engines are not all polled at the same moment
            self._plan(self._fleet.signals.every_s * at / len(self.engines), Kind.SIGNAL, (at, None))
        # in the order of `Kind`
        handlers = (self._fault, self._health, self._signal, self._cached, self._arrival, self._submit, self._handed, self._step)
        heap = self._heap
        while self._left and heap:
            self.now, kind, _, event = heapq.heappop(heap)
            handlers[kind](event)
        self.outcomes.finished_at = max(self.outcomes.ended, default=0.0)
        self.outcomes.preemptions = sum(engine.preemptions for engine in self.engines)
        return self.outcomes

    # engines

    def _step(self, event: tuple[int, int]) -> None:
        at, plan_id = event
        engine = self.engines[at]
        if engine.plan_id == plan_id:
            engine.advance()
            self._follow(at)

    def _follow(self, at: int) -> None:
        engine = self.engines[at]
        if engine.until != IDLE and engine.plan_id != self._planned[at]:
            self._planned[at] = engine.plan_id
            self._plan(engine.until, Kind.ENGINE, (at, engine.plan_id))

    def _begun(self, run: Run, now: float) -> None:
        flight: Flight = run.turn  # type: ignore[assignment]  # engines do not look into it
        sent = flight.sent
        assert sent is not None
        if not flight.prefilled:
            self.outcomes.cached[flight.index] = run.cached
            flight.replica.prefilled(sent, run.cached, now)
        if flight.prefilled or sent.decode == sent.backend:
            self.outcomes.first[flight.index] = now
            flight.replica.begun(sent, now)

    def _ended(self, run: Run, now: float) -> None:
        flight: Flight = run.turn  # type: ignore[assignment]  # engines do not look into it
        assert flight.sent is not None
        if flight.sent.decode != flight.sent.backend and not flight.prefilled:
            self._hand_over(flight, now)
            return
        flight.replica.done(flight.turn, flight.sent, now)
        self._free_adapter(flight)
        self._close(flight.index, State.DONE, now)

    def _close(self, index: int, state: State, now: float) -> None:
        self.outcomes.state[index] = state
        self.outcomes.ended[index] = now
        self._left -= 1
        if self._left % PROGRESS_EVERY == 0:
            self._progress(len(self._turns) - self._left)
        for follower in self._followers.pop(index, ()):
            self._plan(now + self._turns[follower].think_s, Kind.ARRIVAL, follower)

    # requests

    def _arrival(self, index: int) -> None:
        turn = self._turns[index]
        self.outcomes.arrived[index] = self.now
        if not self._limits.take(turn.tenant, turn.prompt_tokens + turn.output_tokens, self.now):
            self._close(index, State.REFUSED, self.now)
            return
        replica = self.replicas[self._spread.randrange(len(self.replicas))] if len(self.replicas) > 1 else self.replicas[0]
        self._place(Flight(index, turn, replica), "")

    def _place(self, flight: Flight, not_on: str) -> None:
        turn = flight.turn
        adapters = adapters_for(turn.lora, self.names, self._shelves) if turn.lora else None
        priority = turn.priority if (tenant := self._fleet.tenants.get(turn.tenant)) is None else tenant.priority
        demand, route, split = flight.replica.route(turn, priority, self.now, adapters, not_on)
        if not route.ranked:
            self._close(flight.index, State.REFUSED if not not_on else State.FAILED, self.now)
            return
        flight.sent = flight.replica.send(demand, route, split, self.now)
        at = self.names.index(flight.sent.backend)
        self.outcomes.engine[flight.index] = at
        self.outcomes.predicted[flight.index] = flight.sent.predicted
        flight.prefilled = False
        # a prefill engine is asked for one token, as vLLM's KV connector does
        output = turn.output_tokens if flight.sent.decode == flight.sent.backend else 1
        flight.run = Run(flight, turn.prompt_tokens, output, turn.chain, self._number, priority)
        self._number += 1
        # a request that the KV cache cannot hold to its last token would be preempted and recomputed for ever
        if not self._alive[at] or not self.engines[at].fits(turn.prompt_tokens, turn.output_tokens):
            self._lost(flight)
        elif turn.lora:
            self._wait_for_adapter(at, flight)
        else:
            self._submit((at, flight))

    def _submit(self, event: tuple[int, Flight]) -> None:
        at, flight = event
        assert flight.run is not None
        if not self._alive[at]:
            self._lost(flight)
            return
        self.engines[at].submit(flight.run, self.now)
        self._follow(at)

    def _hand_over(self, flight: Flight, now: float) -> None:
        """The prompt is computed: transfer its KV to the decode engine."""
        assert flight.sent is not None
        assert self._terms is not None
        at = self.names.index(flight.sent.decode)
        seconds = flight.to_decode(self._terms, self.engines[at].cache.matched(flight.turn.chain) * self.engines[at].block_tokens)
        self._plan(now + seconds, Kind.HANDED, (at, flight))

    def _handed(self, event: tuple[int, Flight]) -> None:
        at, flight = event
        assert flight.sent is not None
        self.outcomes.engine[flight.index] = at
        computed_there = self._alive[self.names.index(flight.sent.backend)]
        if computed_there and self.engines[at].fits(flight.turn.prompt_tokens, flight.turn.output_tokens):
            self._submit((at, flight))
        else:
            self._lost(flight)

    def _lost(self, flight: Flight) -> None:
        """The flight's engine died: retry elsewhere, unless a token of the answer has come."""
        assert flight.sent is not None
        flight.replica.failed(flight.sent)
        if flight.retries >= MAX_RETRIES or (flight.run is not None and flight.run.produced):
            self._close(flight.index, State.FAILED, self.now)
            return
        flight.retries += 1
        self.outcomes.retries += 1
        self._place(flight, flight.sent.decode if flight.prefilled else flight.sent.backend)

    # adapters

    def _wait_for_adapter(self, at: int, flight: Flight) -> None:
        if (there_at := self._shelves[at].take(flight.turn.lora, self.now)) is None:
            self._shelves[at].waiting.append((flight.turn.lora, flight))
        elif there_at > self.now:
            self._plan(there_at, Kind.LOADED, (at, flight))
        else:
            self._submit((at, flight))

    def _free_adapter(self, flight: Flight) -> None:
        if not flight.turn.lora:
            return
        at = self.outcomes.engine[flight.index]
        shelf = self._shelves[at]
        shelf.give_back(flight.turn.lora)
        for _ in range(len(shelf.waiting)):
            _, waiting_flight = shelf.waiting.popleft()
            self._wait_for_adapter(at, waiting_flight)  # type: ignore[arg-type]  # only flights are put there

    # signals to the gateways

    def _publish(self, at: int, stored: bool, hashes: Sequence[int]) -> None:
        if delay := self._fleet.signals.kv_delay_s:
            self._plan(self.engines[at].at + delay, Kind.CACHE, (at, stored, list(hashes)))
        else:
            self._cached((at, stored, hashes))

    def _cached(self, event: tuple[int, bool, Sequence[int]]) -> None:
        at, stored, hashes = event
        if not self._alive[at]:
            return
        for replica in self.replicas:
            (replica.index.stored if stored else replica.index.removed)(self.names[at], hashes)

    def _signal(self, event: tuple[int, tuple[float, int, int, int, float] | None]) -> None:
        at, read = event
        if read is None:
            if self._alive[at]:
                reading = (self.now, *self.engines[at].look(self.now))
                if self._fleet.signals.delay_s:
                    self._plan(self.now + self._fleet.signals.delay_s, Kind.SIGNAL, (at, reading))
                else:
                    self._report(at, reading)
            self._plan(self.now + self._fleet.signals.every_s, Kind.SIGNAL, (at, None))
        else:
            self._report(at, read)

    def _report(self, at: int, reading: tuple[float, int, int, int, float]) -> None:
        when, running, waiting, queued, usage = reading
        capacity = self._kinds[at].timing.kv_tokens
        report = {"running": running, "waiting": waiting, "queued_tokens": queued, "kv_usage": usage, "kv_capacity": capacity}
        for replica in self.replicas:
            replica.board.report(self.names[at], **report, read_at=when, asked_at=when)

    # faults

    def _fault(self, event: tuple[EngineFault, bool]) -> None:
        fault, begins = event
        at = fault.engine
        engine = self.engines[fault.engine]
        if begins:
            self._plan(self.now + fault.for_s, Kind.FAULT, (fault, False))
        if fault.kind == "stall":
            if begins:
                engine.stall(self.now, fault.for_s)
        elif fault.kind == "slow":
            engine.cut(self.now)
            engine.retime(self._kinds[at].timing.times(fault.factor) if begins else self._kinds[at].timing)
        else:
            self._alive[at] = not begins
            self._plan(self.now + self._fleet.signals.detect_s, Kind.HEALTH, (at, not begins))
            if begins:
                self._kill(at)
        self._follow(at)

    def _kill(self, at: int) -> None:
        waiting = [flight for _, flight in self._shelves[at].waiting]
        self._shelves[at].clear()
        for run in self.engines[at].lose_all(self.now):
            self._lost(run.turn)  # type: ignore[arg-type]  # engines do not look into it
        for flight in waiting:
            self._lost(flight)  # type: ignore[arg-type]  # only flights are put there

    def _health(self, event: tuple[int, bool]) -> None:
        at, up = event
        for replica in self.replicas:
            replica.set_up(self.names[at], up, self.now)
