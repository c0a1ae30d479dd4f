"""Disaggregated prefill and decode of one request: one backend computes the prompt, another one generates the answer.

`split_request` decides on the split, right after the routing policy (`routing.disaggregation`); `with_prefill` wraps an attempt, and hands
the KV cache over (`backends.dialects.handover`). The load is reserved on both backends before either is called, and released together.
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
from gateway.request.trace_notes import AttemptNote
from gateway.story import Story
from routing.disaggregation import Reservation, Shared, Split, consider, for_roles, reserve
from routing.fleet import Backend
from routing.schedule import Route

LEAST_S: Final = 1.0
"""The least time in seconds that a decode engine has for its first token, however long the prefill took."""

ROOMS: Final = 2**53
"""The number of room ids by which prefill and decode engine find each other: every JSON parser holds integers below it exactly."""


def split_request(ask: Ask, placement: Placement, story: Story, deps: Deps, rng: Rng) -> Route:
    """The Route without the backends that only prefill or only decode; where the request is split, the decode backend comes first, then the
    backends that serve whole requests, then further decode backends.

    Raises:
        Fault: the request cannot be split, and no backend in the pool, up or not, serves requests whole.
    """
    pool, route, load_table, request = placement.pool, placement.route, placement.pool_state.load_table, placement.request
    terms, handover = deps.sharing.get(pool.name), deps.dialects[pool.name].disaggregation
    obstacle = "" if terms is None or handover is None else _obstacle(ask, story, handover)
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


def _obstacle(ask: Ask, story: Story, handover: Handover) -> str:
    """Why a request cannot be split, to end the sentence "requests with …"; empty when it can."""
    if not ask.endpoint.generates:
        return ask.endpoint.word
    if story.placed.lora:
        return "an adapter"
    if ask.sequences != 1:
        return "more than one answer ('n' or 'best_of' above 1, or several prompts)"
    return next((f"'{name}'" for name in sorted(handover.unsplit & ask.names)), "")


async def with_prefill(attempt: Attempt) -> Fault | None:
    """Run the attempt with the prompt computed by the first of its `prefills` that succeeds.

    When a prefill backend fails and the budget allows another try, the attempt's backend serves the request whole where its role allows
    that; otherwise the next of `prefills` is tried. In both cases the failed backend is added to the Story's.
    """
    story, tried, deps, decode = attempt.story, attempt.story.tried, attempt.deps, attempt.backend
    attempt.placement.give_back()  # nothing is awaited between this and the pair's own reservation
    begun, budget = deps.clock(), deps.budget
    candidates = [backend for backend in attempt.prefills if backend.id not in tried.failed and backend.id in deps.upstreams]
    retrying = False
    try:
        while candidates:
            prefill = candidates.pop(0)
            fault, by_prefill = await PrefillDecodePair(prefill, attempt).run()
            if fault is None or not by_prefill:
                return fault
            tried.backend = prefill.id
            spent, answer_begun = (deps.clock() - begun) / attempt.timeouts.first_event_s, story.attempt.begun
            if not may_retry(fault.kind, retries=len(tried.failed), answer_begun=answer_begun, spent_share=spent, budget=budget):
                return fault
            if decode.role != "both" and not candidates:
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
    """One try of a request on two backends: the prefill on one, the decode on the attempt's own."""

    def __init__(self, prefill: Backend, attempt: Attempt) -> None:
        handover = attempt.deps.dialects[prefill.pool].disaggregation
        assert handover is not None  # pools without `disaggregation` have no prefill or decode engines (`gateway.config.checks`)
        self._handover = handover
        self._prefill = prefill
        self._attempt = attempt
        self._reservation: Reservation | None = None
        self._prefill_released = False
        self._note: AttemptNote | None = None

    async def run(self) -> tuple[Fault | None, bool]:
        """Run the pair; returns the fault, None when the answer is complete, and whether the prefill engine failed."""
        attempt, prefill, decode = self._attempt, self._prefill, self._attempt.backend
        if attempt.exchange.gone:
            return caller_gone(), False
        deps, story = attempt.deps, attempt.story
        if prefill.id not in deps.upstreams or decode.id not in deps.upstreams:
            return backend_drained("one of them is draining", retry_after.SOON), prefill.id not in deps.upstreams
        shared = story.placed.shared
        assert shared is not None  # only a split request has `prefills`
        leg, now = self._leg(), deps.clock()
        try:  # reserve on both backends before either is called
            reservation = reserve(shared.load_table, prefill.id, decode.id, shared.split.uncached_tokens, shared.request, now)
        except KeyError as error:
            return backend_drained(f"{error} has left the pool", retry_after.SOON), prefill.id not in shared.load_table.row_of
        self._reservation = reservation
        for backend in (prefill, decode):
            deps.live.breakers.enter(backend.id, "", story.own_id, now)
        deps.watch.watched[leg] = None
        try:
            return await (self._at_once(leg) if self._handover.at_once else self._in_turn(leg))
        finally:
            leg.close()
            deps.watch.forget(leg)
            if self._note is not None:
                self._note.over(deps.clock(), leg.outcome)
            self._release_prefill()
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
        source = ReplySource(prefill.id, ask.endpoint, (deps.live.fleet.pools[prefill.pool].model,), timeouts, others=deps.names_inside)
        return PrefillLeg(exchange, source, heartbeat=heartbeat, fetched=self._fetched, clock=deps.clock)

    def _fetched(self) -> bool:
        """Whether the decode engine has fetched the KV cache; the first event of the answer shows that."""
        if not self._attempt.story.attempt.events:
            return False
        self._release_prefill()
        return True

    def _release_prefill(self) -> None:
        """Release the load on the prefill backend: its engine is done with the request."""
        if not self._prefill_released and self._reservation is not None:
            self._prefill_released = True
            self._reservation.handed_over()

    def _dispatch(self, leg: PrefillLeg, room: tuple[str, int, int] | None) -> None:
        attempt = self._attempt
        attempt.story.tried.prefill = self._prefill.id
        body = self._handover.prefill_body(attempt.call.body, room)
        call = msgspec.structs.replace(attempt.call, body=body)
        if attempt.story.trace is not None:
            self._note = attempt.noted(self._prefill, None)
            call = self._note.traced(call)
        leg.flight = attempt.deps.upstreams[self._prefill.id].dispatch(call, leg)

    def _decode(self, body: bytes) -> Attempt:
        """The attempt on the decode backend, which the pair's own reservation counts."""
        return msgspec.structs.replace(self._attempt, call=msgspec.structs.replace(self._attempt.call, body=body))

    def _note_prefill(self, fault: Fault | None) -> None:
        deps = self._attempt.deps
        note_outcome(deps.live, self._prefill, "", fault, self._attempt.story.own_id, deps.clock(), deps.rng)

    async def _in_turn(self, leg: PrefillLeg) -> tuple[Fault | None, bool]:
        """Call the prefill engine first; the address of the KV cache in its reply goes into the call of the decode engine."""
        attempt, clock = self._attempt, self._attempt.deps.clock
        begun = clock()
        attempt.exchange.listener = leg
        self._dispatch(leg, None)
        fault = await leg.outcome
        params = None
        if fault is None:
            try:
                params = self._handover.params_of(leg.body)
            except ValueError as error:
                fault = unusable_reply(str(error))
        self._note_prefill(fault)
        if fault is not None:
            return fault, True
        assert self._reservation is not None
        self._reservation.prefilled()
        decode, spent_s = self._decode(self._handover.decode_body(attempt.call.body, params, None)), clock() - begun
        decode.timeouts = attempt.timeouts.less(spent_s, LEAST_S)
        fault = await decode.dispatch()
        if params is not None:
            self._take_cached(leg)
        return fault, False

    async def _at_once(self, leg: PrefillLeg) -> tuple[Fault | None, bool]:
        """Call both engines at once; the decode engine fetches the KV cache from the prefill engine."""
        attempt, address = self._attempt, self._prefill.bootstrap
        if address is None:
            return no_engine(f"{self._prefill.id} has no bootstrap_port"), True
        room = (*address, attempt.deps.rng.randrange(ROOMS))
        self._dispatch(leg, room)
        decode = self._decode(self._handover.decode_body(attempt.call.body, None, room))
        generating = asyncio.ensure_future(decode.dispatch())
        try:
            await asyncio.wait((generating, leg.outcome), return_when=asyncio.FIRST_COMPLETED)
            broken = leg.outcome.result() if leg.outcome.done() else None
            if leg.outcome.done():
                self._note_prefill(broken)
            if broken is not None and not generating.done() and not attempt.story.attempt.events:
                return broken, True
            if leg.outcome.done():
                self._release_prefill()
            fault = await generating
            if leg.outcome.done() and leg.outcome.result() is None:
                self._take_cached(leg)
            return fault, False
        finally:
            if not generating.done():
                generating.cancel()
                await asyncio.gather(generating, return_exceptions=True)

    def _take_cached(self, leg: PrefillLeg) -> None:
        """Take the cached tokens from the prefill engine's reply: the decode engine counts all tokens that it was handed as cached."""
        cached, facts = leg.cached_tokens, self._attempt.story.attempt
        if cached is not None and facts.usage is not None:
            facts.usage = msgspec.structs.replace(facts.usage, cached_tokens=max(0, min(cached, facts.usage.prompt_tokens)))
