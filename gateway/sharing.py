"""Requests that two backends share: where `routing.disaggregation` and `backends.dialects.handover` meet.

`shared` decides, right after the routing policy; `with_prefill` goes around an attempt. Both backends are reserved before
either is asked for anything, and given back together.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from backends.attempt import may_retry
from backends.dialects.handover import Handover
from backends.ports import Call
from domain.ask import Ask
from domain.clock import Rng
from domain.faults import Fault, Kind
from gateway.adapters import caller_gone
from gateway.deps import Deps
from gateway.fleet.health_watch import note_outcome
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.patience import SOON
from gateway.http.edge.prefill_leg import PrefillLeg
from gateway.reply_headers import reply_headers
from gateway.story import Story
from routing.board import Board
from routing.demand import Demand
from routing.disaggregation import Reservation, Shared, Split, consider, halved, reserve
from routing.fleet import Backend, Pool
from routing.schedule import Route

LEAST_S: Final = 1.0
"""What a decoding engine has for its first token at least, however long the prompt took."""

ROOMS: Final = 2**53
"""Numbers that halves may meet under: as many as a JSON number holds exactly everywhere."""

NOBODY: Final = "No engine can serve this request right now. Try again."

Attempt = Callable[[Call, tuple[float, float], bool], Awaitable[Fault | None]]
"""One call to the generating backend, the seconds that it has until its first event, and for an engine taken out; and whether
its place there is reserved already."""


def shared(ask: Ask, demand: Demand, pool: Pool, route: Route, board: Board, story: Story, deps: Deps, rng: Rng) -> Route:
    """The Route without those who serve one half only; where the request is split, the one that generates comes first, then who
    serves whole, then further ones that generate.

    Raises:
        Fault: the request cannot be split, and nobody in the pool, up or not, serves requests whole.
    """
    terms, way = deps.sharing.get(pool.name), deps.dialects[pool.name].disaggregation
    obstacle = "" if terms is None or way is None else _obstacle(ask, story, way)
    split: Split | None = None
    if obstacle:
        if all(one.role != "both" for one in pool.backends):
            raise Fault(
                Kind.UNSUPPORTED_PARAMETER,
                f"The engines serving this model cannot answer requests with {obstacle}. Send the request without.",
            )
    elif terms is not None:
        held = {one.id: tokens for one, tokens in zip(route.backends, route.matched, strict=False)}
        split = consider(demand, route.backends, board, held, terms, rng)
        story.shared = Shared(split, demand, board)
    return halved(route, split)


def _obstacle(ask: Ask, story: Story, way: Handover) -> str:
    """Why a request cannot be split, to end the sentence "requests with …"; empty when it can."""
    if not ask.endpoint.generates:
        return ask.endpoint.word
    if story.lora:
        return "an adapter"
    if ask.sequences != 1:
        return "more than one answer ('n' or 'best_of' above 1, or several prompts)"
    return next((f"'{name}'" for name in sorted(way.unsplit & ask.names)), "")


async def with_prefill(
    prefills: tuple[Backend, ...],
    decode: Backend,
    ask: Ask,
    call: Call,
    within_s: tuple[float, float],
    exchange: Exchange,
    story: Story,
    deps: Deps,
    attempt: Attempt,
) -> Fault | None:
    """An attempt on `decode`, with the prompt computed by the first of `prefills` that can.

    When that one fails and the budget allows another try, `decode` serves the request whole if it does so, else the next of
    `prefills` is tried; in both cases the failed one is written down as such.
    """
    begun, budget = deps.clock(), deps.budget
    left = [one for one in prefills if one.id not in story.failed and one.id in deps.upstreams]
    retrying = False
    try:
        while left:
            prefill = left.pop(0)
            fault, by_prefill = await _Pair(prefill, decode, ask, call, within_s, exchange, story, deps).run(attempt)
            if fault is None or not by_prefill:
                return fault
            story.backend = prefill.id
            spent = (deps.clock() - begun) / within_s[0]
            if not may_retry(fault.kind, retries=len(story.failed), answer_begun=story.events > 0, spent_share=spent, budget=budget):
                return fault
            if decode.role != "both" and not left:
                return fault
            budget.retry()
            retrying = True
            story.failed += (prefill.id,)
            if decode.role == "both":
                story.prefill = ""
                return await attempt(call, within_s, False)
    finally:
        if retrying:
            budget.retrying -= 1
    return Fault(
        Kind.BACKEND_LOST, "No engine can serve this request right now. Try again.", retry=SOON, detail="no prefill engine is left"
    )


class _Pair:
    """One try of one pair."""

    def __init__(
        self,
        prefill: Backend,
        decode: Backend,
        ask: Ask,
        call: Call,
        within_s: tuple[float, float],
        exchange: Exchange,
        story: Story,
        deps: Deps,
    ) -> None:
        way = deps.dialects[prefill.pool].disaggregation
        assert way is not None  # pools without have no halves (`gateway.contradictions_halves`)
        self._way = way
        self._prefill = prefill
        self._decode = decode
        self._ask = ask
        self._call = call
        self._within_s = within_s
        self._exchange = exchange
        self._story = story
        self._deps = deps
        self._events = story.events
        self._reservation: Reservation | None = None
        self._handed_over = False

    async def run(self, attempt: Attempt) -> tuple[Fault | None, bool]:
        """How it ended, and whether it was the prompt's half that failed."""
        if self._exchange.gone:
            return caller_gone(), False
        deps, story = self._deps, self._story
        if self._prefill.id not in deps.upstreams or self._decode.id not in deps.upstreams:
            return _left("one of them is draining"), self._prefill.id not in deps.upstreams
        shared = story.shared
        assert shared is not None  # `forward` pairs nobody else
        leg, now = self._leg(), deps.clock()
        try:  # both, before either is sent anything
            reservation = reserve(shared.board, self._prefill.id, self._decode.id, shared.split.uncached_tokens, shared.demand, now)
        except KeyError as error:
            return _left(f"{error} has left the pool"), self._prefill.id not in shared.board.row_of
        self._reservation = reservation
        for one in (self._prefill, self._decode):
            deps.live.breakers.of(one.id).enter(story.own_id, now)
        deps.watch.add(leg)
        try:
            return await (self._at_once if self._way.at_once else self._in_turn)(leg, attempt)
        finally:
            leg.close()
            deps.watch.forget(leg)
            self._hand_over()
            reservation.release()

    def _leg(self) -> PrefillLeg:
        deps, ask, story, exchange = self._deps, self._ask, self._story, self._exchange
        within_s = deps.patience.begin_s(ask.prompt_bytes, deps.live.prefill.get(self._prefill.id))
        return PrefillLeg(
            exchange,
            backend=self._prefill.id,
            called=(ask.endpoint, (deps.live.fleet.pools[self._prefill.pool].model,)),
            within_s=within_s,
            beat_s=deps.patience.heartbeat_s if ask.stream else 0.0,
            headers=lambda: reply_headers(exchange, story, None, deps, stream=ask.stream),
            fetched=self._fetched,
            clock=deps.clock,
            loop=deps.loop,
        )

    def _fetched(self) -> bool:
        """The first event of the answer says that the generating engine has the KV."""
        if self._story.events == self._events:
            return False
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        """The prompt's engine is rid of the request."""
        if not self._handed_over and self._reservation is not None:
            self._handed_over = True
            self._reservation.handed_over()

    def _dispatch(self, leg: PrefillLeg, room: tuple[str, int, int] | None) -> None:
        story, call = self._story, self._call
        story.prefill = self._prefill.id
        body = self._way.prefill_body(call.body, room)
        leg.flight = self._deps.upstreams[self._prefill.id].dispatch(msgspec.structs.replace(call, body=body), leg)

    async def _in_turn(self, leg: PrefillLeg, attempt: Attempt) -> tuple[Fault | None, bool]:
        """Prompt first; what its reply says of the KV goes into the second call."""
        deps, begun = self._deps, self._deps.clock()
        self._exchange.listener = leg
        self._dispatch(leg, None)
        fault = await leg.outcome
        params = None
        if fault is None:
            try:
                params = self._way.params_of(leg.body)
            except ValueError as error:
                fault = Fault(Kind.INVALID_REPLY, "The engine sent no usable answer. Try again.", retry=SOON, detail=str(error))
        note_outcome(deps.live, self._prefill, "", fault, self._story.own_id, deps.clock(), deps.rng)
        if fault is not None:
            return fault, True
        assert self._reservation is not None
        self._reservation.prefilled()
        body = self._way.decode_body(self._call.body, params, None)
        fault = await attempt(msgspec.structs.replace(self._call, body=body), self._time_left(deps.clock() - begun), True)
        if params is not None:
            self._take_cached(leg)
        return fault, False

    async def _at_once(self, leg: PrefillLeg, attempt: Attempt) -> tuple[Fault | None, bool]:
        """Both calls together; the halves meet at the prompt's engine."""
        deps, place = self._deps, self._prefill.bootstrap
        if place is None:
            detail = f"{self._prefill.id} has no bootstrap_port"
            return Fault(Kind.BACKEND_LOST, NOBODY, retry=SOON, detail=detail), True
        room = (*place, deps.rng.randrange(ROOMS))
        self._dispatch(leg, room)
        body = self._way.decode_body(self._call.body, None, room)
        generating = asyncio.ensure_future(attempt(msgspec.structs.replace(self._call, body=body), self._within_s, True))
        try:
            await asyncio.wait((generating, leg.outcome), return_when=asyncio.FIRST_COMPLETED)
            broken = leg.outcome.result() if leg.outcome.done() else None
            if leg.outcome.done():
                note_outcome(deps.live, self._prefill, "", broken, self._story.own_id, deps.clock(), deps.rng)
            if broken is not None and not generating.done() and self._story.events == self._events:
                return broken, True
            if leg.outcome.done():
                self._hand_over()
            fault = await generating
            if leg.outcome.done() and leg.outcome.result() is None:
                self._take_cached(leg)
            return fault, False
        finally:
            if not generating.done():
                generating.cancel()
                await asyncio.gather(generating, return_exceptions=True)

    def _time_left(self, spent_s: float) -> tuple[float, float]:
        return max(LEAST_S, self._within_s[0] - spent_s), max(LEAST_S, self._within_s[1] - spent_s)

    def _take_cached(self, leg: PrefillLeg) -> None:
        """What was cached is known where the prompt was computed; the other engine counts as cached what it was handed."""
        cached, usage = leg.cached_tokens, self._story.usage
        if cached is not None and self._story.usage_reported:
            self._story.usage = msgspec.structs.replace(usage, cached_tokens=max(0, min(cached, usage.prompt_tokens)))


def _left(detail: str) -> Fault:
    return Fault(Kind.BACKEND_DRAINED, "The engine was taken out of service. Try again.", retry=SOON, detail=detail)
