"""The event loop of the simulator (`SimulatedFleet`), in virtual time and repeatable for a seed.

Requests arrive, replicas route them, engines step, signals travel, faults happen. Events of one moment happen in the order of `EventKind`,
then in the order they were scheduled, so nothing depends on the order of a dict or a heap. Beside the loop stand tenants' token buckets
(`TokenLimits`), which only it uses.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from routing.disaggregation import HandoverTerms
from routing.policy_instance import PolicyInstance
from routing.simulation.adapters import SimulatedAdapters, adapters_for
from routing.simulation.decoders import Decoding
from routing.simulation.engine import IDLE, SimulatedEngine
from routing.simulation.fleet_file import EngineFault, FleetFile, SimulatedTenant
from routing.simulation.outcomes import Outcomes, RequestEnd, none_yet
from routing.simulation.replica import Replica, SentRequest
from routing.simulation.turns import Dice, TraceRequest, Workload


class TokenLimits:
    """One bucket per tenant that has a limit; full at the start."""

    __slots__ = ("_levels", "_tenants")

    def __init__(self, tenants: Mapping[str, SimulatedTenant]) -> None:
        self._tenants = tenants
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, tenant: str, tokens: int, now: float) -> bool:
        """Take the tokens from the tenant's bucket; False, and nothing taken, when it has fewer."""
        rule = self._tenants.get(tenant)
        if rule is None or rule.tokens_per_s is None:
            return True
        full = rule.tokens_per_s * rule.burst_s
        level, since = self._levels.get(tenant, (full, now))
        level = min(full, level + (now - since) * rule.tokens_per_s)
        enough = level >= tokens
        self._levels[tenant] = (level - tokens if enough else level, now)
        return enough


class EventKind(IntEnum):
    """Kind of an event; events of the same moment happen in ascending order."""

    FAULT = 0
    HEALTH = 1
    SIGNAL = 2
    CACHE = 3
    ARRIVAL = 4
    LOADED = 5
    HANDED = 6
    ENGINE = 7
    SIBLINGS = 8
    CALL = 9


class SimulatedFlight:
    """A request in flight between a gateway replica and an engine."""

    __slots__ = ("for_slot", "index", "moves", "prefilled", "replica", "retries", "run", "sent", "turn")

    def __init__(self, index: int, turn: TraceRequest, replica: Replica) -> None:
        self.index = index
        self.turn = turn
        self.replica = replica
        self.retries = 0
        self.prefilled = False
        """Whether a prefill engine has computed the prompt, so that the decode engine's part is next or running."""
        self.for_slot = False
        """Whether, at the last look, it lacked nothing but a slot for its adapter."""
        self.moves = -1
        """The changes of all adapters before that look."""
        self.sent: SentRequest | None = None
        self.run: Decoding | None = None

    def to_decode(self, terms: HandoverTerms, there: int) -> float:
        """Continue on the decode engine, after the prefill engine has computed the prompt. Returns the seconds of the KV transfer.

        Args:
            there: tokens of the prompt that the decode engine has cached.
        """
        first = self.run
        turn = self.turn
        assert first is not None
        self.prefilled = True
        self.run = Decoding(
            self, turn.prompt_tokens, turn.output_tokens, turn.chain if terms.decode_reuses else (), first.order, -first.key[0]
        )
        self.run.handed = turn.prompt_tokens
        moved = turn.prompt_tokens - (there if terms.decode_reuses else 0)
        return moved * terms.kv_bytes_token / terms.bandwidth_bytes_s + terms.fixed_s


MAX_RETRIES: Final = 1
"""Retries per request, before its first token, as in the gateway's retry budget."""
PROGRESS_EVERY: Final = 200
"""Ended requests between two calls of `progress`."""


class SimulatedFleet:
    """One run of one workload under one policy. `run` may be called once."""

    def __init__(
        self,
        fleet: FleetFile,
        workload: Workload,
        policy_instance: Callable[[], PolicyInstance],
        dice: Dice,
        progress: Callable[[int], None] = lambda done: None,
        replica: type[Replica] = Replica,
    ) -> None:
        self._fleet = fleet
        self._turns = workload.turns
        self._progress = progress
        self._kinds = [kind for kind in fleet.engines for _ in range(kind.count)]
        self.names = [f"engine-{i}" for i in range(len(self._kinds))]
        self._spread = dice("replicas")
        self.replicas = [
            replica(i, self.names, fleet, workload.block_tokens, policy_instance(), dice(f"replica {i}")) for i in range(fleet.replicas)
        ]
        self.engines = [self._engine(i, workload.block_tokens) for i in range(len(self._kinds))]
        self._shelves = [SimulatedAdapters(kind.lora_slots, kind.lora_load_s) for kind in self._kinds]
        self._alive = [True] * len(self.engines)
        self._planned = [-1] * len(self.engines)
        self._followers: dict[int, list[int]] = defaultdict(list)
        self._terms = fleet.disaggregation.terms(pairs_whole=True) if fleet.disaggregation else None
        self._limits = TokenLimits(fleet.tenants)
        self._heap: list[tuple[float, int, int, Any]] = []
        self._number = 0
        self._left = len(self._turns)
        self._looks: dict[Replica, None] = {}
        """Replicas whose queues are to be looked through once the event under way is over, when no engine is in the middle of a step."""
        self.outcomes: Outcomes = none_yet(len(self._turns))
        self.now = 0.0

    def _engine(self, at: int, block_tokens: int) -> SimulatedEngine:
        kind = self._kinds[at]
        limits = {"max_num_seqs": kind.max_num_seqs, "token_budget": kind.token_budget}
        engine = SimulatedEngine(kind.timing, block_tokens, **limits, by_priority=kind.by_priority, begun=self._begun, ended=self._ended)
        if self._fleet.signals.kv_events:
            engine.cache.stored = lambda hashes: self._publish(at, True, hashes)
            engine.cache.removed = lambda hashes: self._publish(at, False, hashes)
        return engine

    def _plan(self, at: float, kind: EventKind, event: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at, kind, self._number, event))

    def run(self) -> Outcomes:
        """Run until every turn has ended."""
        for index, turn in enumerate(self._turns):
            if turn.after >= 0:
                self._followers[turn.after].append(index)
            else:
                self._plan(turn.at_s, EventKind.ARRIVAL, index)
        for fault in self._fleet.faults:
            self._plan(fault.at_s, EventKind.FAULT, (fault, True))
        for at in range(len(self.engines)):
            # engines are not all polled at the same moment
            self._plan(self._fleet.signals.every_s * at / len(self.engines), EventKind.SIGNAL, (at, None))
        if len(self.replicas) > 1 and self._fleet.siblings_s:
            self._plan(self._fleet.siblings_s, EventKind.SIBLINGS, None)
        # in the order of `EventKind`
        handlers = (
            self._fault,
            self._health,
            self._signal,
            self._cached,
            self._arrival,
            self._submit,
            self._handed,
            self._step,
            self._exchange,
            self._call,
        )
        heap = self._heap
        while self._left and heap:
            self.now, kind, _, event = heapq.heappop(heap)
            handlers[kind](event)
            while self._looks:
                self._look(self._looks.popitem()[0])
        self.outcomes.finished_at = max(self.outcomes.ended, default=0.0)
        self.outcomes.preemptions = sum(engine.preemptions for engine in self.engines)
        return self.outcomes

    def _call(self, event: Callable[[], None]) -> None:
        event()

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
            self._plan(engine.until, EventKind.ENGINE, (at, engine.plan_id))

    def _begun(self, run: Decoding, now: float) -> None:
        flight: SimulatedFlight = run.turn  # type: ignore[assignment]  # engines do not look into it
        sent = flight.sent
        assert sent is not None
        if not flight.prefilled:
            self.outcomes.cached[flight.index] = run.cached
            flight.replica.prefilled(sent, run.cached, now)
            self._looks[flight.replica] = None
        if flight.prefilled or sent.decode == sent.backend:
            self.outcomes.first[flight.index] = now
            flight.replica.begun(sent, now)

    def _ended(self, run: Decoding, now: float) -> None:
        flight: SimulatedFlight = run.turn  # type: ignore[assignment]  # engines do not look into it
        assert flight.sent is not None
        if flight.sent.decode != flight.sent.backend and not flight.prefilled:
            self._hand_over(flight, now)
            return
        flight.replica.done(flight.turn, flight.sent, now)
        self._looks[flight.replica] = None
        self._free_adapter(flight)
        self._close(flight.index, RequestEnd.DONE, now)

    def _close(self, index: int, state: RequestEnd, now: float) -> None:
        self.outcomes.state[index] = state
        self.outcomes.ended[index] = now
        self._left -= 1
        if self._left % PROGRESS_EVERY == 0:
            self._progress(len(self._turns) - self._left)
        for follower in self._followers.pop(index, ()):
            self._plan(now + self._turns[follower].think_s, EventKind.ARRIVAL, follower)

    # requests

    def _arrival(self, index: int) -> None:
        turn = self._turns[index]
        self.outcomes.arrived[index] = self.now
        if not self._limits.take(turn.tenant, turn.prompt_tokens + turn.output_tokens, self.now):
            self._close(index, RequestEnd.REFUSED, self.now)
            return
        replica = self.replicas[self._spread.randrange(len(self.replicas))] if len(self.replicas) > 1 else self.replicas[0]
        flight = SimulatedFlight(index, turn, replica)
        if replica.queue.in_line:
            replica.wait(flight, turn, self.now)
            self._look(replica)
        else:
            self._place(flight, "")

    def _look(self, replica: Replica) -> None:
        """Something has changed that may have given a backend room."""
        if len(replica.queue):
            replica.queue.look(replica.has_room, lambda flight: self._place(flight, "", waits=True))

    def _place(self, flight: SimulatedFlight, not_on: str, *, waits: bool = False) -> bool:
        """Route a request and send it; False where it has to wait, or to go on waiting where it `waits` already."""
        turn = flight.turn
        if turn.lora:
            moves = sum([shelf.moves for shelf in self._shelves])
            if flight.for_slot and flight.moves == moves:
                return False  # as the gateway, which does not route it anew before a slot may have become free
            flight.moves = moves
        adapters = adapters_for(turn.lora, self.names, self._shelves) if turn.lora else None
        priority = turn.priority if (tenant := self._fleet.tenants.get(turn.tenant)) is None else tenant.priority
        request, route, split = flight.replica.route(turn, priority, self.now, adapters, not_on)
        flight.for_slot = route.lacks_slot
        if not route.ranked and route.full:
            if not waits:
                flight.replica.wait(flight, turn, self.now, for_slot=flight.for_slot)
            return False
        if not route.ranked:
            self._close(flight.index, RequestEnd.REFUSED if not not_on else RequestEnd.FAILED, self.now)
            return True
        flight.sent = flight.replica.send(request, route, split, self.now)
        at = self.names.index(flight.sent.backend)
        self.outcomes.engine[flight.index] = at
        self.outcomes.predicted[flight.index] = flight.sent.predicted
        flight.prefilled = False
        # a prefill engine is asked for one token, as vLLM's KV connector does
        output = turn.output_tokens if flight.sent.decode == flight.sent.backend else 1
        chain = [*turn.chain, *turn.answer] if turn.answer and output == turn.output_tokens else turn.chain
        flight.run = Decoding(flight, turn.prompt_tokens, output, chain, self._number, priority)
        self._number += 1
        # a request that the KV cache cannot hold to its last token would be preempted and recomputed for ever
        if not self._alive[at] or not self.engines[at].fits(turn.prompt_tokens, turn.output_tokens):
            self._lost(flight)
        elif turn.lora:
            self._with_adapter(at, flight)
        else:
            self._submit((at, flight))
        return True

    def _submit(self, event: tuple[int, SimulatedFlight]) -> None:
        at, flight = event
        assert flight.run is not None
        if not self._alive[at]:
            self._lost(flight)
            return
        self.engines[at].submit(flight.run, self.now)
        self._follow(at)

    def _hand_over(self, flight: SimulatedFlight, now: float) -> None:
        """The prompt is computed: transfer its KV to the decode engine."""
        assert flight.sent is not None
        assert self._terms is not None
        at = self.names.index(flight.sent.decode)
        seconds = flight.to_decode(self._terms, self.engines[at].cache.matched(flight.turn.chain) * self.engines[at].block_tokens)
        self._plan(now + seconds, EventKind.HANDED, (at, flight))

    def _handed(self, event: tuple[int, SimulatedFlight]) -> None:
        at, flight = event
        assert flight.sent is not None
        self.outcomes.engine[flight.index] = at
        computed_there = self._alive[self.names.index(flight.sent.backend)]
        if computed_there and self.engines[at].fits(flight.turn.prompt_tokens, flight.turn.output_tokens):
            self._submit((at, flight))
        else:
            self._lost(flight)

    def _lost(self, flight: SimulatedFlight) -> None:
        """The flight's engine died: retry elsewhere, unless a token of the answer has come."""
        assert flight.sent is not None
        flight.replica.failed(flight.sent)
        self._looks[flight.replica] = None
        if flight.retries >= MAX_RETRIES or (flight.run is not None and flight.run.produced):
            self._close(flight.index, RequestEnd.FAILED, self.now)
            return
        flight.retries += 1
        self.outcomes.retries += 1
        self._place(flight, flight.sent.decode if flight.prefilled else flight.sent.backend)

    # adapters

    def _with_adapter(self, at: int, flight: SimulatedFlight) -> None:
        there_at = self._shelves[at].take(flight.turn.lora, self.now)
        if there_at > self.now:
            self._plan(there_at, EventKind.LOADED, (at, flight))
        else:
            self._submit((at, flight))

    def _free_adapter(self, flight: SimulatedFlight) -> None:
        if flight.turn.lora:
            self._shelves[self.outcomes.engine[flight.index]].give_back(flight.turn.lora)

    # signals to the gateways

    def _publish(self, at: int, stored: bool, hashes: Sequence[int]) -> None:
        if delay := self._fleet.signals.kv_delay_s:
            self._plan(self.engines[at].at + delay, EventKind.CACHE, (at, stored, list(hashes)))
        else:
            self._cached((at, stored, hashes))

    def _cached(self, event: tuple[int, bool, Sequence[int]]) -> None:
        at, stored, hashes = event
        if not self._alive[at]:
            return
        for replica in self.replicas:
            (replica.index.stored if stored else replica.index.removed)(self.names[at], hashes)

    def _exchange(self, _: None) -> None:
        """Replicas tell each other of the requests they sent."""
        told = [replica.told(self.now) for replica in self.replicas]
        for batch in told:
            if batch is not None:
                for replica in self.replicas:
                    replica.hear(batch, self.now)
        self._looks.update(dict.fromkeys(self.replicas))
        self._plan(self.now + self._fleet.siblings_s, EventKind.SIBLINGS, None)

    def _signal(self, event: tuple[int, tuple[float, int, int, int, float] | None]) -> None:
        at, read = event
        if read is None:
            if self._alive[at]:
                reading = (self.now, *self.engines[at].look(self.now))
                self._note_cache(reading[4])
                if self._fleet.signals.delay_s:
                    self._plan(self.now + self._fleet.signals.delay_s, EventKind.SIGNAL, (at, reading))
                else:
                    self._report(at, reading)
            self._plan(self.now + self._fleet.signals.every_s, EventKind.SIGNAL, (at, None))
        else:
            self._report(at, read)

    def _note_cache(self, used: float) -> None:
        outcomes = self.outcomes
        outcomes.kv_readings += 1
        outcomes.kv_used += used
        outcomes.kv_peak = max(outcomes.kv_peak, used)

    def _report(self, at: int, reading: tuple[float, int, int, int, float]) -> None:
        when, running, waiting, queued, usage = reading
        capacity = self._kinds[at].timing.kv_tokens
        told = queued if self._fleet.signals.queued_tokens else None
        report = {"running": running, "waiting": waiting, "queued_tokens": told, "kv_usage": usage, "kv_capacity": capacity}
        for replica in self.replicas:
            replica.load_table.report(self.names[at], **report, read_at=when, asked_at=when)
            if len(replica.queue):
                self._looks[replica] = None

    # faults

    def _fault(self, event: tuple[EngineFault, bool]) -> None:
        fault, begins = event
        at = fault.engine
        engine = self.engines[fault.engine]
        if begins:
            self._plan(self.now + fault.for_s, EventKind.FAULT, (fault, False))
        if fault.kind == "stall":
            if begins:
                engine.stall(self.now, fault.for_s)
        elif fault.kind == "slow":
            engine.cut(self.now)
            engine.retime(self._kinds[at].timing.times(fault.factor) if begins else self._kinds[at].timing)
        else:
            self._alive[at] = not begins
            self._plan(self.now + self._fleet.signals.detect_s, EventKind.HEALTH, (at, not begins))
            if begins:
                self._kill(at)
        self._follow(at)

    def _kill(self, at: int) -> None:
        self._shelves[at].clear()
        for run in self.engines[at].lose_all(self.now):
            self._lost(run.turn)  # type: ignore[arg-type]  # engines do not look into it

    def _health(self, event: tuple[int, bool]) -> None:
        at, up = event
        self._shelves[at].moves += 1
        for replica in self.replicas:
            replica.set_up(self.names[at], up, self.now)
            self._looks[replica] = None
