"""One gateway process of a simulated fleet: its own load table, prefix index, policy memory and queue, and the gateway's routing code.

As in the gateway, a request also waits where others wait already, and each first token, end of an answer and load report lets the queue be
looked through again: the request whose turn it is is routed anew, and sent where that decision says. Nothing is refused for waiting long:
latencies of policies are comparable only where the same requests are answered.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

import msgspec

from domain.clock import Rng
from routing.calibration import NO_BATCH, Calibration, DecodeBatch, batch_on, decode_sample
from routing.disaggregation import HandoverTerms, Reservation, Split, consider, for_roles, reserve
from routing.fair_queue import FairQueue, QueueBounds
from routing.fair_tier import QueuedRequest, in_order_s
from routing.fleet import Availability, Backend, Pool
from routing.load import BackendFacts, Charge, LoadTable
from routing.output_length import OutputLengths
from routing.policy_instance import PolicyInstance
from routing.ports import Adapters, Circumstances, RoutingRequest
from routing.prefix.index import Prediction, PrefixIndex
from routing.rates import Rates
from routing.residency import with_adapter
from routing.room import has_no_room
from routing.schedule import Route, place
from routing.siblings import HearSiblings, SiblingNews, TellSiblings
from routing.simulation.fleet_file import FleetFile
from routing.simulation.timing import StepTiming
from routing.simulation.turns import TraceRequest
from routing.warmth import SLOW_START_S

MAX_INDEX_BLOCKS: Final = 2_000_000
"""Distinct blocks in the prefix index."""
MAX_SESSIONS: Final = 100_000
"""Sessions whose last backend is remembered."""
STALE_S: Final = 3.0
"""Seconds beyond its usual age after which a load report counts as stale."""
MIN_STEPS: Final = 8
"""Output tokens from which on an answer is a sample of the decode step, as in the gateway."""


UNBOUNDED: Final = QueueBounds(1 << 40, 1 << 60, 1 << 40, 1 << 60)

Attempt = Callable[[Any], bool]
"""Routes a request anew and sends it; False while no backend has room for it."""


class SimulatedQueue:
    """The queue of one replica: a line for capacity, and one for adapter slots. Bounded by the requests of the workload."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: tuple[tuple[FairQueue, dict[int, Any]], ...] = ((FairQueue(UNBOUNDED), {}), (FairQueue(UNBOUNDED), {}))

    def __len__(self) -> int:
        return sum([len(flights) for _, flights in self._lines])

    @property
    def in_line(self) -> bool:
        """Whether a request waits for capacity, so that others go behind it."""
        return bool(self._lines[0][1])

    def join(self, flight: object, turn: TraceRequest, uncached: float, size_s: float, now: float, *, for_slot: bool = False) -> None:
        """Let a request wait.

        Args:
            flight: what `look` hands to its attempts.
            uncached: tokens of its prompt that the best backend has to compute.
            size_s: seconds that it takes there.
            for_slot: whether it lacks nothing but a slot for its adapter.
        """
        cost = max(1, round(uncached) + 2 * turn.output_tokens)
        place = QueuedRequest(turn.tenant, turn.priority_class, False, cost, inf, now, 1, 0, order_s=in_order_s(size_s, now))
        queue, flights = self._lines[for_slot]
        queue.put(place)
        flights[place.seq] = flight

    def look(self, has_room: Callable[[], bool], attempt: Attempt) -> None:
        """Send what can be sent now, in order, as long as any backend has room."""
        for queue, flights in reversed(self._lines):
            while flights and has_room():
                place = queue.next(lambda waiting, flights=flights: attempt(flights[waiting.seq]))
                if place is None:
                    break
                queue.take(place)
                del flights[place.seq]


class SentRequest(msgspec.Struct, gc=False):
    """A sent request: what to release and learn when it is over."""

    held: Charge | Reservation
    """The request's in-flight load in the load table, on one backend or on a pair."""
    prediction: Prediction
    predicted: float
    """Prompt tokens that the index predicted as cached."""
    backend: str
    """The backend that computes the prompt."""
    decode: str
    """The backend that generates; usually the same."""
    at: float
    prompt: int
    queued: float
    """Prompt tokens queued there when it was sent."""
    queued_ctx: float
    """The sum of those tokens' contexts."""
    interference_s: float
    """What decode steps there were expected to add to its time to the first token."""
    first_at: float = 0.0
    began: DecodeBatch = NO_BATCH
    """The backend's batch at `first_at`."""


class _Conversations(OrderedDict[int, str]):
    """The backend of each conversation's last turn; at the bound the one whose last turn is the oldest is forgotten."""

    def held(self, session: int, backend_id: str) -> None:
        self[session] = backend_id
        self.move_to_end(session)
        if len(self) > MAX_SESSIONS:
            self.popitem(last=False)


class Replica:
    """One gateway process. Index and sessions are bounded by constants, the rest by the fleet and the requests in flight.

    Args:
        number: no other replica of the fleet has it.
    """

    def __init__(
        self, number: int, names: Sequence[str], fleet: FleetFile, block_tokens: int, policy_instance: PolicyInstance, rng: Rng
    ) -> None:
        self._rng = rng
        self._fleet = fleet
        self._block_tokens = block_tokens
        self._choosing = policy_instance
        kinds = [kind for kind in fleet.engines for _ in range(kind.count)]
        self._roles = {name: kind.role for name, kind in zip(names, kinds, strict=True)}
        self._halves = any(role != "both" for role in self._roles.values())
        # as in vLLM, an engine that serves requests whole can also prefill or decode for another
        self._terms: HandoverTerms | None = fleet.disaggregation.terms(pairs_whole=True) if fleet.disaggregation else None
        self._backends = {name: Backend(name, "pool", Availability.UP, "", role=self._roles[name]) for name in names}
        self._pool = Pool("pool", "model", "r1", "vllm", tuple(self._backends.values()), tuple(self._backends.values()))
        self.load_table = LoadTable()
        if fleet.hold_s:
            self.load_table.set_hold(fleet.hold_s if fleet.siblings_s else fleet.hold_s / fleet.replicas)
        self.queue = SimulatedQueue()
        self.index = PrefixIndex(MAX_INDEX_BLOCKS)
        for name, kind in zip(names, kinds, strict=True):
            facts = BackendFacts(0, kind.context_tokens, kind.price, kind.region, kind.token_budget)
            self.load_table.add(name, rates_of(kind.timing), facts)
            if not fleet.signals.kv_events:
                self.index.size(name, kind.timing.kv_tokens // block_tokens)
        self._speeds = {name: Calibration(rates_of(kind.timing)) for name, kind in zip(names, kinds, strict=True)}
        self._sessions = _Conversations()
        self._tell = TellSiblings(0, number) if fleet.replicas > 1 and fleet.siblings_s else None
        self._hear = HearSiblings(0, number, lambda _: self.load_table, self.index, lambda _: self._sessions)
        self._lengths = OutputLengths()
        self._checked_at = 0.0

    def route(
        self, turn: TraceRequest, priority: float, now: float, adapters: Adapters | None, not_on: str
    ) -> tuple[RoutingRequest, Route, Split | None]:
        """Decide where the turn goes: the routing request, the route and the disaggregation decision. Changes no state but that of the
        random generator.

        Args:
            not_on: id of a backend to leave out, on a retry; empty for none.
        """
        p50, p90 = (turn.output_tokens,) * 2 if self._fleet.known_output else self._lengths.expect(turn.tenant, "", 0, None)
        request = RoutingRequest(
            prompt_tokens=turn.prompt_tokens,
            chain=turn.chain,
            block_tokens=self._block_tokens,
            output_tokens=p50,
            output_tokens_p90=p90,
            session=turn.session,
            tenant=turn.tenant,
            priority=priority,
            lora=turn.lora,
            ttft_slo_s=self._fleet.slo.ttft_s,
        )
        if now - self._checked_at > 1.0:
            self._checked_at = now
            self.load_table.stale(now, self._fleet.signals.every_s + self._fleet.signals.delay_s + STALE_S)
            self._end_slow_starts(now)
        match = self.index.match(turn.chain, now, self._backends)
        holder = self.holder_of(turn)
        pool = self._pool if not not_on else self._pool_now(without=not_on)
        route = place(
            request,
            pool,
            self.load_table,
            self._choosing,
            Circumstances(now, match, holder=holder, adapters=adapters),
            self._rng,
        )
        if adapters is not None and not self._choosing.policy.in_seconds:
            route = with_adapter(route, adapters.there, self.load_table)
        split: Split | None = None
        if self._terms is not None and not turn.lora:
            held = {backend.id: tokens for backend, tokens in zip(route.backends, route.matched, strict=False)}
            split = consider(request, route.backends, self.load_table, held, self._terms, self._rng)
        return request, for_roles(route, split) if self._halves or split is not None else route, split

    def holder_of(self, turn: TraceRequest) -> str:
        """The backend of the conversation's last turn; empty for none."""
        return self._sessions.get(turn.session, "") if turn.session else ""

    def has_room(self) -> bool:
        """Whether any backend has room for a request."""
        load_table = self.load_table
        return any([not has_no_room(load_table, load_table.row_of[backend.id], 1.0) for backend in self._pool.up])

    def wait(self, flight: object, turn: TraceRequest, now: float, *, for_slot: bool = False) -> None:
        """Let a request wait in the queue, with the size that it has on the backend with most of it cached."""
        held = self.index.match(turn.chain, now, self._backends).blocks
        seconds = self.load_table.prefill_s_token
        rows = [(row, turn.prompt_tokens - held.get(name, 0) * self._block_tokens) for row, name in enumerate(self.load_table.ids)]
        size_s, uncached = min((seconds[row] * max(1, tokens), max(1, tokens)) for row, tokens in rows)
        self.queue.join(flight, turn, uncached, size_s, now, for_slot=for_slot)

    def send(self, request: RoutingRequest, route: Route, split: Split | None, now: float) -> SentRequest:
        """Charge the route's first backend, and the prefill backend of a split request."""
        decode = route.ranked[0][0]
        prefills = split.prefills_for(decode) if split is not None else ()
        backend = prefills[0].id if prefills else decode.id
        row = self.load_table.row_of[backend]
        queued = self.load_table.queue_tokens[row]
        queued_ctx = self.load_table.queue_ctx[row]
        interference_s = self.load_table.interference_s(row, request.prompt_tokens - (route.matched[0] if route.matched else 0.0))
        held: Charge | Reservation
        if split is not None and prefills:
            matched = float(request.prompt_tokens - split.uncached_tokens)
            uncached: float = split.uncached_tokens
            held = reserve(self.load_table, backend, decode.id, split.uncached_tokens, request, now)
        else:
            matched = route.matched[0]
            uncached = request.prompt_tokens - matched
            held = self.load_table.charge(backend, uncached, uncached + request.output_tokens, now, matched)
        if self._choosing.memory is not None:
            self._choosing.memory.placed(request, backend, uncached, now)
        prediction = self.index.predict(backend, request.chain, now)
        if request.session:
            self._sessions.held(request.session, backend)
        if self._tell is not None:
            self._tell.sent(backend, request.session, () if self._fleet.signals.kv_events else request.chain)
        return SentRequest(held, prediction, matched, backend, decode.id, now, request.prompt_tokens, queued, queued_ctx, interference_s)

    def told(self, now: float) -> SiblingNews | None:
        """What it has to tell the other replicas."""
        return self._tell.batch((self.load_table,), now) if self._tell is not None else None

    def hear(self, batch: SiblingNews, now: float) -> None:
        """Take in what another replica told."""
        self._hear.hear(batch, now)

    def prefilled(self, sent: SentRequest, cached: int, now: float) -> None:
        """Learn that the prompt is computed, and how many of its tokens the engine had cached."""
        if isinstance(sent.held, Reservation):
            sent.held.prefilled()
        else:
            self.load_table.begun(sent.held)
        self.index.confirm(sent.prediction, now)
        self.load_table.reuse.note(sent.prompt, cached)
        calibration = self._speeds[sent.backend]
        uncached = sent.prompt - cached
        calibration.first_token(uncached, cached + 0.5 * uncached, sent.queued, now - sent.at, sent.queued_ctx, sent.interference_s)
        self.load_table.set_rates(sent.backend, calibration.rates, calibration.residual_s)

    def begun(self, sent: SentRequest, now: float) -> None:
        """Learn that the first token came."""
        if isinstance(sent.held, Reservation):
            sent.held.handed_over()
        sent.first_at = now
        sent.began = batch_on(self.load_table, self.load_table.row_of[sent.decode])

    def failed(self, sent: SentRequest) -> None:
        """Release a request whose engine died, and withdraw its prediction."""
        self._release(sent)
        self.index.withdraw(sent.prediction)

    def done(self, turn: TraceRequest, sent: SentRequest, now: float) -> None:
        """Release a completed request, and learn from it."""
        if turn.output_tokens > MIN_STEPS and now > sent.first_at:
            row = self.load_table.row_of[sent.decode]
            steps, seconds = turn.output_tokens - 1, now - sent.first_at
            self._speeds[sent.decode].step(*decode_sample(self.load_table, row, sent.began, steps, seconds))
        self._release(sent)
        self._lengths.note(turn.tenant, "", 0, turn.output_tokens, None)

    def _release(self, sent: SentRequest) -> None:
        if isinstance(sent.held, Reservation):
            sent.held.release()
        else:
            self.load_table.release(sent.held)

    def set_up(self, name: str, up: bool, now: float) -> None:
        """The replica learns that this engine is up, with an empty cache, or down."""
        state, reason = (Availability.UP, "") if up else (Availability.DOWN, "does not answer")
        self._backends[name] = Backend(name, "pool", state, reason, role=self._roles[name], warming_since=now if up else None)
        if not up:
            self.index.forget(name)
        self._pool = self._pool_now()

    def _end_slow_starts(self, now: float) -> None:
        for name, backend in self._backends.items():
            if backend.warming_since is not None and now - backend.warming_since >= SLOW_START_S:
                self._backends[name] = Backend(name, "pool", Availability.UP, "")
                self._pool = self._pool_now()

    def _pool_now(self, without: str = "") -> Pool:
        backends = tuple(self._backends.values())
        up = tuple(backend for backend in backends if backend.state is Availability.UP and backend.id != without)
        not_up = tuple(backend for backend in backends if backend.state is not Availability.UP)
        warming = any(backend.warming_since is not None for backend in up)
        return Pool("pool", "model", "r1", "vllm", backends, up, not_up, warming=warming)


def rates_of(timing: StepTiming) -> Rates:
    """The prior of an engine's speed: its true timing, as operators may know it from a load test."""
    c0, c1, c1a, c2, c3 = (value / 1e3 for value in (timing.c0, timing.c1, timing.c1a, timing.c2, timing.c3))
    return Rates(c0, c1, c1a, c0, c2, c3)
