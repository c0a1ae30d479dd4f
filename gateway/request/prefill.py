"""Split requests, whose prompt one backend computes and another continues: where `routing.disaggregation` and
`backends.dialects.handover` meet.

`split_request` decides, right after the routing policy; `with_prefill` goes around an attempt. Both backends are reserved before
either is asked for anything, and given back together.
"""

import asyncio
from typing import Final

import msgspec

from backends.attempt import may_retry
from backends.dialects.handover import Handover
from domain import retry_after
from domain.ask import Ask
from domain.clock import Rng
from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.fleet.health import note_outcome
from gateway.http.edge.attempt_faults import backend_drained, caller_gone, no_engine, unusable_reply
from gateway.http.edge.prefill_leg import PrefillLeg
from gateway.http.edge.relay import Heartbeat, ReplySource
from gateway.placement.place import Placement
from gateway.request.attempt import Attempt
from gateway.request.reply_headers import reply_headers
from gateway.story import Story
from routing.disaggregation import Reservation, Shared, Split, consider, for_roles, reserve
from routing.fleet import Backend
from routing.schedule import Route

LEAST_S: Final = 1.0
"""What a decoding engine has for its first token at least, however long the prompt took."""

ROOMS: Final = 2**53
"""Room numbers under which prefill and decode engine may meet: as many as a JSON number holds exactly everywhere."""


def split_request(ask: Ask, placement: Placement, story: Story, deps: Deps, rng: Rng) -> Route:
    """The Route without the backends that only prefill or only decode; where the request is split, the decode backend comes first, then the
    backends that serve whole requests, then further decode backends.

    Raises:
        Fault: the request cannot be split, and no backend in the pool, up or not, serves requests whole.
    """
    pool, route, load_table, request = placement.pool, placement.route, placement.pool_state.load_table, placement.request
    terms, way = deps.sharing.get(pool.name), deps.dialects[pool.name].disaggregation
    obstacle = "" if terms is None or way is None else _obstacle(ask, story, way)
    split: Split | None = None
    if obstacle:
        if all(backend.role != "both" for backend in pool.backends):
            raise Fault(
                Kind.UNSUPPORTED_PARAMETER,
                f"The engines serving this model cannot answer requests with {obstacle}. Send the request without.",
            )
    elif terms is not None:
        held = {backend.id: tokens for backend, tokens in zip(route.backends, route.matched, strict=False)}
        split = consider(request, route.backends, load_table, held, terms, rng)
        story.placed.shared = Shared(split, request, load_table)
    return for_roles(route, split)


def _obstacle(ask: Ask, story: Story, way: Handover) -> str:
    """Why a request cannot be split, to end the sentence "requests with …"; empty when it can."""
    if not ask.endpoint.generates:
        return ask.endpoint.word
    if story.placed.lora:
        return "an adapter"
    if ask.sequences != 1:
        return "more than one answer ('n' or 'best_of' above 1, or several prompts)"
    return next((f"'{name}'" for name in sorted(way.unsplit & ask.names)), "")


async def with_prefill(attempt: Attempt) -> Fault | None:
    """The attempt, with the prompt computed by the first of its `prefills` that can.

    When that one fails and the budget allows another try, the attempt's backend serves the request whole if it does so, else the next of
    `prefills` is tried; in both cases the failed one is written down as such.
    """
    story, tried, deps, decode = attempt.story, attempt.story.tried, attempt.deps, attempt.backend
    attempt.placement.give_back()  # nothing runs between this and the pair's own reservation
    begun, budget = deps.clock(), deps.budget
    left = [backend for backend in attempt.prefills if backend.id not in tried.failed and backend.id in deps.upstreams]
    retrying = False
    try:
        while left:
            prefill = left.pop(0)
            fault, by_prefill = await PrefillDecodePair(prefill, attempt).run()
            if fault is None or not by_prefill:
                return fault
            tried.backend = prefill.id
            spent, answer_begun = (deps.clock() - begun) / attempt.timeouts.first_event_s, story.attempt.events > 0
            if not may_retry(fault.kind, retries=len(tried.failed), answer_begun=answer_begun, spent_share=spent, budget=budget):
                return fault
            if decode.role != "both" and not left:
                return fault
            budget.retry()
            retrying = True
            tried.failed += (prefill.id,)
            if decode.role == "both":
                tried.prefill = ""
                return await attempt.run()
    finally:
        if retrying:
            budget.retrying -= 1
    return no_engine("no prefill engine is left")


class PrefillDecodePair:
    """One try of one pair: the prompt on one backend, the answer from the attempt's own."""

    def __init__(self, prefill: Backend, attempt: Attempt) -> None:
        way = attempt.deps.dialects[prefill.pool].disaggregation
        assert way is not None  # pools without `disaggregation` have no prefill or decode engines (`gateway.config.checks`)
        self._way = way
        self._prefill = prefill
        self._attempt = attempt
        self._reservation: Reservation | None = None
        self._handed_over = False

    async def run(self) -> tuple[Fault | None, bool]:
        """How it ended, and whether the prefill engine failed."""
        attempt, prefill, decode = self._attempt, self._prefill, self._attempt.backend
        if attempt.exchange.gone:
            return caller_gone(), False
        deps, story = attempt.deps, attempt.story
        if prefill.id not in deps.upstreams or decode.id not in deps.upstreams:
            return backend_drained("one of them is draining", retry_after.SOON), prefill.id not in deps.upstreams
        shared = story.placed.shared
        assert shared is not None  # `forward` pairs no other requests
        leg, now = self._leg(), deps.clock()
        try:  # both, before either is sent anything
            reservation = reserve(shared.load_table, prefill.id, decode.id, shared.split.uncached_tokens, shared.request, now)
        except KeyError as error:
            return backend_drained(f"{error} has left the pool", retry_after.SOON), prefill.id not in shared.load_table.row_of
        self._reservation = reservation
        for backend in (prefill, decode):
            deps.live.breakers.of(backend.id).enter(story.own_id, now)
        deps.watch.watched[leg] = None
        try:
            return await (self._at_once(leg) if self._way.at_once else self._in_turn(leg))
        finally:
            leg.close()
            deps.watch.forget(leg)
            self._hand_over()
            reservation.release()

    def _leg(self) -> PrefillLeg:
        attempt, deps, prefill = self._attempt, self._attempt.deps, self._prefill
        ask, story, exchange = attempt.ask, attempt.story, attempt.exchange
        timeouts = deps.timeouts.of_attempt(ask.prompt_bytes, deps.live.prefill.get(prefill.id))
        heartbeat: Heartbeat | None = None
        if ask.stream:
            heartbeat = Heartbeat(
                exchange, lambda: reply_headers(exchange, story, None, deps, stream=True), deps.timeouts.heartbeat_s, deps.clock()
            )
        source = ReplySource(prefill.id, ask.endpoint, (deps.live.fleet.pools[prefill.pool].model,), timeouts)
        return PrefillLeg(exchange, source, heartbeat=heartbeat, fetched=self._fetched, clock=deps.clock)

    def _fetched(self) -> bool:
        """Whether the decode engine has the KV: the first event of the answer says so."""
        if not self._attempt.story.attempt.events:
            return False
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        """The prefill engine is rid of the request."""
        if not self._handed_over and self._reservation is not None:
            self._handed_over = True
            self._reservation.handed_over()

    def _dispatch(self, leg: PrefillLeg, room: tuple[str, int, int] | None) -> None:
        attempt = self._attempt
        attempt.story.tried.prefill = self._prefill.id
        body = self._way.prefill_body(attempt.call.body, room)
        leg.flight = attempt.deps.upstreams[self._prefill.id].dispatch(msgspec.structs.replace(attempt.call, body=body), leg)

    def _decode(self, body: bytes) -> Attempt:
        """The attempt on the decode backend, which the pair's own reservation counts."""
        return msgspec.structs.replace(self._attempt, call=msgspec.structs.replace(self._attempt.call, body=body))

    def _note_prefill(self, fault: Fault | None) -> None:
        deps = self._attempt.deps
        note_outcome(deps.live, self._prefill, "", fault, self._attempt.story.own_id, deps.clock(), deps.rng)

    async def _in_turn(self, leg: PrefillLeg) -> tuple[Fault | None, bool]:
        """The prompt first; the KV's address in its reply goes into the second call."""
        attempt, clock = self._attempt, self._attempt.deps.clock
        begun = clock()
        attempt.exchange.listener = leg
        self._dispatch(leg, None)
        fault = await leg.outcome
        params = None
        if fault is None:
            try:
                params = self._way.params_of(leg.body)
            except ValueError as error:
                fault = unusable_reply(str(error))
        self._note_prefill(fault)
        if fault is not None:
            return fault, True
        assert self._reservation is not None
        self._reservation.prefilled()
        decode, spent_s = self._decode(self._way.decode_body(attempt.call.body, params, None)), clock() - begun
        decode.timeouts = attempt.timeouts.less(spent_s, LEAST_S)
        fault = await decode.dispatch()
        if params is not None:
            self._take_cached(leg)
        return fault, False

    async def _at_once(self, leg: PrefillLeg) -> tuple[Fault | None, bool]:
        """Both calls together; the decode engine fetches the KV cache from the prefill engine."""
        attempt, address = self._attempt, self._prefill.bootstrap
        if address is None:
            return no_engine(f"{self._prefill.id} has no bootstrap_port"), True
        room = (*address, attempt.deps.rng.randrange(ROOMS))
        self._dispatch(leg, room)
        decode = self._decode(self._way.decode_body(attempt.call.body, None, room))
        generating = asyncio.ensure_future(decode.dispatch())
        try:
            await asyncio.wait((generating, leg.outcome), return_when=asyncio.FIRST_COMPLETED)
            broken = leg.outcome.result() if leg.outcome.done() else None
            if leg.outcome.done():
                self._note_prefill(broken)
            if broken is not None and not generating.done() and not attempt.story.attempt.events:
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

    def _take_cached(self, leg: PrefillLeg) -> None:
        """Take the cached tokens from the prefill engine's reply; the decode engine counts as cached what it was handed."""
        cached, facts = leg.cached_tokens, self._attempt.story.attempt
        if cached is not None and facts.usage is not None:
            facts.usage = msgspec.structs.replace(facts.usage, cached_tokens=max(0, min(cached, facts.usage.prompt_tokens)))
