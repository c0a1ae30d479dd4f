"""One gateway process of a simulated fleet: its own load table, prefix index and policy memory, and the gateway's routing code."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from domain.clock import Rng
from routing.calibration import Calibration
from routing.disaggregation import HandoverTerms, Reservation, Split, consider, for_roles, reserve
from routing.fleet import Availability, Backend, Pool
from routing.load import BackendFacts, Charge, LoadTable, Rates
from routing.output_length import OutputLengths
from routing.policy_instance import PolicyInstance
from routing.ports import Adapters, Circumstances, RoutingRequest
from routing.prefix.index import Prediction, PrefixIndex
from routing.residency import with_adapter
from routing.schedule import Route, place
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
    first_at: float = 0.0
    began: tuple[float, float] = (0.0, 0.0)
    """Sequences in the backend's batch and tokens in their contexts at `first_at`."""


class Replica:
    """One gateway process. Index and sessions are bounded by constants, the rest by the fleet and the requests in flight."""

    def __init__(self, names: Sequence[str], fleet: FleetFile, block_tokens: int, policy_instance: PolicyInstance, rng: Rng) -> None:
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
        self.index = PrefixIndex(MAX_INDEX_BLOCKS)
        for name, kind in zip(names, kinds, strict=True):
            facts = BackendFacts(context_tokens=kind.context_tokens, price=kind.price, region=kind.region)
            self.load_table.add(name, rates_of(kind.timing), facts)
            if not fleet.signals.kv_events:
                self.index.size(name, kind.timing.kv_tokens // block_tokens)
        self._speeds = {name: Calibration(rates_of(kind.timing)) for name, kind in zip(names, kinds, strict=True)}
        self._sessions: OrderedDict[int, str] = OrderedDict()
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
        holder = self._sessions.get(turn.session, "") if turn.session else ""
        pool = self._pool if not not_on else self._pool_now(without=not_on)
        route = place(
            request, pool, self.load_table, self._choosing, Circumstances(now, match, holder=holder, adapters=adapters), self._rng
        )
        if adapters is not None and not self._choosing.policy.in_seconds:
            route = with_adapter(route, adapters.there, self.load_table)
        split: Split | None = None
        if self._terms is not None and not turn.lora:
            held = {backend.id: tokens for backend, tokens in zip(route.backends, route.matched, strict=False)}
            split = consider(request, route.backends, self.load_table, held, self._terms, self._rng)
        return request, for_roles(route, split) if self._halves or split is not None else route, split

    def send(self, request: RoutingRequest, route: Route, split: Split | None, now: float) -> SentRequest:
        """Charge the route's first backend, and the prefill backend of a split request."""
        decode = route.ranked[0][0]
        prefills = split.prefills_for(decode) if split is not None else ()
        backend = prefills[0].id if prefills else decode.id
        row = self.load_table.row_of[backend]
        queued = self.load_table.queue_tokens[row]
        queued_ctx = self.load_table.queue_ctx[row]
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
            self._sessions[request.session] = backend
            self._sessions.move_to_end(request.session)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return SentRequest(held, prediction, matched, backend, decode.id, now, request.prompt_tokens, queued, queued_ctx)

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
        calibration.first_token(uncached, cached + 0.5 * uncached, sent.queued, now - sent.at, sent.queued_ctx)
        self.load_table.set_rates(sent.backend, calibration.rates, calibration.residual_s)

    def begun(self, sent: SentRequest, now: float) -> None:
        """Learn that the first token came."""
        if isinstance(sent.held, Reservation):
            sent.held.handed_over()
        sent.first_at = now
        sent.began = self._batch(sent.decode)

    def failed(self, sent: SentRequest) -> None:
        """Release a request whose engine died, and withdraw its prediction."""
        self._release(sent)
        self.index.withdraw(sent.prediction)

    def done(self, turn: TraceRequest, sent: SentRequest, now: float) -> None:
        """Release a completed request, and learn from it."""
        if turn.output_tokens > MIN_STEPS and now > sent.first_at:
            at_first = sent.began
            at_end = self._batch(sent.decode)
            step_s = (now - sent.first_at) / (turn.output_tokens - 1)
            self._speeds[sent.decode].step((at_first[0] + at_end[0]) / 2, (at_first[1] + at_end[1]) / 2, step_s)
        self._release(sent)
        self._lengths.note(turn.tenant, "", 0, turn.output_tokens, None)

    def _release(self, sent: SentRequest) -> None:
        if isinstance(sent.held, Reservation):
            sent.held.release()
        else:
            self.load_table.release(sent.held)

    def _batch(self, backend: str) -> tuple[float, float]:
        row = self.load_table.row_of[backend]
        return self.load_table.running[row], self.load_table.kv_tokens[row]

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
