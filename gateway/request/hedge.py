"""Hedged requests: one request on two backends, answered by the backend that sends the first token. `backends.hedge` decides when.

Both attempts are complete: each reserves its own load on its backend and releases it. Before a first event neither attempt has written
anything, so both share one exchange and one Story; the first event of one attempt ends the other in the same callback. In a pool with
`hedge`, a request that is not hedged costs one timer; in other pools hedging costs nothing.
"""

import asyncio
from functools import partial

from backends.hedge import Hedge
from domain import retry_after
from domain.faults import Fault, Kind
from gateway.http.edge.exchange import Listener
from gateway.request.attempt import Attempt
from routing.fleet import Backend
from routing.room import has_no_room


async def hedged(attempt: Attempt) -> Fault | None:
    """Run the attempt, and a second one on another backend when the first takes too long; returns the caller's fault, None for none."""
    hedge = hedge_for(attempt)
    return await (attempt.run() if hedge is None else Race(hedge, attempt).run())


def hedge_for(attempt: Attempt) -> Hedge | None:
    """The pool's hedge, for a streamed request with a short prompt of which the backend has nothing cached; None for other requests."""
    placement = attempt.placement
    hedge = attempt.deps.hedges.get(placement.pool.name)
    if hedge is None or not attempt.ask.stream or placement.adapter is not None or attempt.story.placed.shared is not None:
        return None
    if len(placement.route.ranked) < 2 or placement.request.prompt_tokens > hedge.max_prompt_tokens:
        return None
    return None if placement.held_tokens(attempt.backend.id) else hedge


class Race(Listener):
    """Two attempts of one request, the second started by a timer. Listens to the caller's connection until one of them has won."""

    __slots__ = ("_attempts", "_hedge", "_second", "_sent_at", "_winner")

    def __init__(self, hedge: Hedge, first: Attempt) -> None:
        self._hedge = hedge
        self._sent_at = first.deps.clock()
        self._attempts = [first]
        self._second: asyncio.Task[Fault | None] | None = None
        self._winner: Attempt | None = None

    async def run(self) -> Fault | None:
        """Run the race; returns the caller's fault, None when the answer is complete."""
        first, hedge = self._attempts[0], self._hedge
        story = first.story
        self._listen_for(first)
        hedge.request()
        timer = None if hedge.delay_s is None else first.deps.loop.call_later(hedge.delay_s, self._start_second)
        try:
            fault = await first.run()
            if self._second is None:
                return fault
            second, failed = self._attempts[1], self._winner is None
            fault_of_second = await self._second
            if self._winner is second:
                story.tried.failed += (first.backend.id,) if failed else ()
                return fault_of_second
            story.tried.backend = first.backend.id
            if fault is not None and self._winner is None and not first.exchange.gone:
                story.tried.failed += (second.backend.id,)  # both backends have failed
            return fault
        finally:
            if timer is not None:
                timer.cancel()
            if self._second is not None and not self._second.done():
                self._second.cancel()
                await asyncio.gather(self._second, return_exceptions=True)
            for attempt in self._attempts:
                attempt.listener = attempt.on_first_event = None

    def _listen_for(self, attempt: Attempt) -> None:
        attempt.listener = self
        attempt.on_first_event = partial(self._first_event, attempt)

    def _start_second(self) -> None:
        """Start the second attempt: no first token has come in time."""
        first = self._attempts[0]
        if first.story.attempt.events or first.exchange.gone or first.exchange.finished:
            return
        spare = self._spare_backend()
        if spare is not None and self._hedge.spend():
            second = first.on(spare)
            self._listen_for(second)
            self._attempts.append(second)
            self._second = first.deps.loop.create_task(self._run_second(second))

    def _spare_backend(self) -> Backend | None:
        """The candidate that would begin to compute soonest; None where every candidate is busy."""
        first, delay_s = self._attempts[0], self._hedge.delay_s
        placement, deps = first.placement, first.deps
        load_table, request, now = placement.pool_state.load_table, placement.request, deps.clock()
        if deps.queues[placement.pool.name].in_line or delay_s is None or placement.pool_state.held_back(request.tenant, placement.pool):
            return None
        shut = deps.live.breakers.shut(placement.served, now)
        part = placement.pool_state.tenant_shares.usable_share(request.tenant, now)
        spares = []
        for rank, backend in enumerate(placement.route.backends[1:]):
            row = load_table.row_of.get(backend.id)
            if (
                row is None
                or backend.id not in deps.upstreams
                or backend.id in shut
                or has_no_room(load_table, row, request.prompt_tokens, part)
            ):
                continue
            spares.append((load_table.queue_tokens[row] * load_table.prefill_s_token[row], rank, backend))
        if not spares:
            return None
        queued_s, _, spare = min(spares)
        return spare if queued_s <= delay_s / 2 else None

    async def _run_second(self, second: Attempt) -> Fault | None:
        if self._winner is not None:
            return _lost_race()  # the first attempt won in the same turn of the event loop
        second.story.tried.hedged = (self._attempts[0].backend.id, second.backend.id)
        return await second.run()

    def _first_event(self, attempt: Attempt) -> None:
        if self._winner is not None:
            return
        self._winner, story = attempt, attempt.story
        assert attempt.facts is not None  # an attempt with an event was sent
        assert attempt.relay is not None
        story.attempt = attempt.facts
        story.tried.backend = attempt.backend.id
        attempt.exchange.listener = attempt.relay
        self._hedge.began(attempt.deps.clock() - self._sent_at)
        for rival in self._attempts:
            if rival is not attempt and rival.relay is not None:
                rival.relay.end_with(_lost_race())
        if story.placed.decision is not None:
            story.placed.decision.served_by = attempt.backend.id
        if attempt.on_begun is not None:
            attempt.on_begun()

    # --- from the caller's connection -------------------------------------------------------------------------------

    def gone(self) -> None:
        for attempt in self._attempts:
            if attempt.relay is not None:
                attempt.relay.gone()

    def full(self) -> None:
        for attempt in self._attempts:
            if attempt.relay is not None:
                attempt.relay.full()

    def drained(self) -> None:
        for attempt in self._attempts:
            if attempt.relay is not None:
                attempt.relay.drained()

    def cut(self) -> None:
        for attempt in self._attempts:
            if attempt.relay is not None:
                attempt.relay.cut()


def _lost_race() -> Fault:
    return Fault(Kind.BACKEND_LOST, "Another engine was faster.", retry=retry_after.SOON, detail="another backend began to answer first")
