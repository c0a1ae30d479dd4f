"""One request on two backends, of which the first to bring a token answers: where `backends.hedge` meets the relays.

Both attempts are whole ones, each counted on its backend and given back by itself. Until a first event is there neither has written
anything, so they share one exchange and one Story; with it the other one is ended, in the same callback. A request that is not
hedged pays for a timer, and one in a pool without `hedge` for nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from backends.hedge import Hedge
from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.patience import SOON
from gateway.http.edge.relay import ReplyRelay
from gateway.placing.placing import Placing
from gateway.story import Story
from routing.fleet import Backend
from routing.room import has_no_room

Attempt = Callable[[Backend], Coroutine[Any, Any, Fault | None]]
"""A whole attempt on one backend."""


class RacingRelay(ReplyRelay):
    """A relay that says when it is being fed, so that it is known whose event came first."""

    __slots__ = ("race",)

    race: "Race"

    def on_data(self, data: bytes) -> None:
        """See `backends.ports.ReplySink`."""
        self.race.feeding = self
        super().on_data(data)


class Race(Listener):
    """See the module."""

    __slots__ = ("_attempt", "_deps", "_exchange", "_hedge", "_hooks", "_placing", "_relays", "_second", "_sent_at", "_story", "_task",
        "_winner", "feeding")  # fmt: skip

    def __init__(self, hedge: Hedge, placing: Placing, exchange: Exchange, story: Story, deps: Deps) -> None:
        self._hedge = hedge
        self._placing = placing
        self._exchange = exchange
        self._story = story
        self._deps = deps
        self._sent_at = deps.clock()
        self._relays: list[RacingRelay] = []
        self._hooks: dict[str, Callable[[], None] | None] = {}
        self._attempt: Attempt | None = None
        self._second: Backend | None = None
        self._task: asyncio.Task[Fault | None] | None = None
        self._winner = ""
        self.feeding: RacingRelay | None = None

    async def run(self, attempt: Attempt) -> Fault | None:
        """The attempt on the first backend, and on another one where that takes too long; how it ended for the caller."""
        first, hedge, story = self._placing.route.backends[0], self._hedge, self._story
        self._attempt = attempt
        hedge.request()
        timer = None if hedge.delay_s is None else self._deps.loop.call_later(hedge.delay_s, self._fire)
        try:
            fault = await attempt(first)
            if self._task is None or self._second is None:
                return fault
            failed = not self._winner
            other = await self._task
            if self._winner == self._second.id:
                story.failed += (first.id,) if failed else ()
                return other
            story.backend = first.id
            if fault is not None and not self._winner:
                story.failed += (self._second.id,)  # two have been tried
            return fault
        finally:
            if timer is not None:
                timer.cancel()
            if self._task is not None and not self._task.done():
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            story.on_begun = None

    def _fire(self) -> None:
        """No first token in time."""
        if self._story.events or self._exchange.gone or self._exchange.finished:
            return
        other = self._spare()
        if other is not None and self._hedge.spend():
            self._second = other
            self._task = self._deps.loop.create_task(self._also(other))

    def _spare(self) -> Backend | None:
        """Another backend that would begin soon; None where all have enough to do."""
        placing, deps, delay_s = self._placing, self._deps, self._hedge.delay_s
        board, demand, now = placing.ground.board, placing.demand, deps.clock()
        if deps.lines[placing.pool.name].waiting or delay_s is None:
            return None
        shut = deps.live.breakers.shut(placing.served, now)
        part, found = placing.ground.holders.part(demand.tenant, now), []
        for at, one in enumerate(placing.route.backends[1:]):
            row = board.row_of.get(one.id)
            if row is None or one.id not in deps.upstreams or one.id in shut or has_no_room(board, row, demand.prompt_tokens, part):
                continue
            found.append((board.queue_tokens[row] * board.prefill_s_token[row], at, one))
        if not found:
            return None
        queued_s, _, other = min(found)
        return other if queued_s <= delay_s / 2 else None

    async def _also(self, other: Backend) -> Fault | None:
        if self._winner or self._attempt is None:
            return _beaten()  # in the same turn of the loop
        self._story.hedged = (self._placing.route.backends[0].id, other.id)
        return await self._attempt(other)

    # --- told by the attempts ---------------------------------------------------------------------------------------

    def with_one_more(self, relay: ReplyRelay) -> Listener:
        """An attempt's relay; who hears of the caller's connection then."""
        assert isinstance(relay, RacingRelay)
        relay.race = self
        self._relays.append(relay)
        return self

    def hook(self, backend: str, begun: Callable[[], None] | None) -> Callable[[], None]:
        """What is to be done at the first event, whoever it is from.

        Args:
            begun: what is to be done where it is from this backend.
        """
        self._hooks[backend] = begun
        return self._begun

    def _begun(self) -> None:
        winner, story = self.feeding, self._story
        if winner is None or self._winner:
            return
        self._winner = story.backend = winner.backend
        self._exchange.listener = winner
        self._hedge.began(self._deps.clock() - self._sent_at)
        for relay in self._relays:
            if relay is not winner:
                relay.end_with(_beaten())
        if story.decision is not None:
            story.decision.served_by = winner.backend
        begun = self._hooks.get(winner.backend)
        if begun is not None:
            begun()

    # --- from the caller's connection -------------------------------------------------------------------------------

    def gone(self) -> None:
        """See `Listener`."""
        for relay in self._relays:
            relay.gone()

    def full(self) -> None:
        """See `Listener`."""
        for relay in self._relays:
            relay.full()

    def drained(self) -> None:
        """See `Listener`."""
        for relay in self._relays:
            relay.drained()

    def cut(self) -> None:
        """See `Listener`."""
        for relay in self._relays:
            relay.cut()


def race_of(ask: Ask, placing: Placing, exchange: Exchange, story: Story, deps: Deps) -> Race | None:
    """The race that a request may become: in a pool that says so, a stream with a short prompt that nobody holds anything of."""
    hedge = deps.hedges.get(placing.pool.name)
    if hedge is None or not ask.stream or placing.adapter is not None or story.shared is not None:
        return None
    backends = placing.route.backends
    if len(backends) < 2 or placing.demand.prompt_tokens > hedge.max_prompt_tokens or placing.held_tokens(backends[0].id):
        return None
    return Race(hedge, placing, exchange, story, deps)


def _beaten() -> Fault:
    return Fault(Kind.BACKEND_LOST, "Another engine was faster.", retry=SOON, detail="another backend began to answer first")
