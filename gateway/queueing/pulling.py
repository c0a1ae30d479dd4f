"""Carries out preemption: takes a request without a first token back from its backend, for a more urgent one that waits; `preemption`
decides which.

It costs nothing while no request waits: candidates are looked for among the running relays, and only for the first waiter of the queue.
The preempted request keeps its hold, its deadline and its age, is charged nothing, and goes to the front of its tenant's requests. Its
backend's health, its retries and the poison check do not count the attempt.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from domain.clock import Clock
from domain.faults import Fault, Kind, Retry
from domain.priority import Class
from domain.usage import NO_USAGE
from gateway.http.edge.relay import ReplyRelay
from gateway.placing.limits import Limits
from gateway.placing.stake import LONG_PREFILL_TOKENS
from gateway.queueing.places import class_of, place_back
from gateway.queueing.preemption import Pace, Sent, first_to_give_way
from gateway.queueing.waiter import Waiter
from gateway.story import Story
from routing.load import Charge, LoadTable
from routing.room import has_no_room, room_without
from tenancy.fair_tier import QueuedRequest

MOST_LOOKS: Final = 16
"""The number of candidates that are examined closely for one waiter."""

MayWait = Callable[[QueuedRequest, float], bool]
"""Whether a request with this queue entry could wait so many seconds."""


class PulledBack(Fault):
    """Ends an attempt that was preempted; the request goes back to the queue, and its caller never sees this fault."""

    def __init__(self, by: Class) -> None:
        super().__init__(
            Kind.OVERLOADED,
            "This model is overloaded, and others went before this request. Try again shortly.",
            retry=Retry(should=True, after_s=1.0),
            detail=f"gave its place on a backend to {by.word}",
        )


class Pulling:
    """Preempts requests of one pool.

    Args:
        lowest: the highest class whose requests may be preempted, in favour of higher classes than their own.
        relays: all running relays, of every pool.
    """

    __slots__ = ("_board", "_clock", "_limits", "_lowest", "_pace", "_pool", "_relays")

    def __init__(
        self, pool: str, lowest: Class, board: LoadTable, limits: Limits, relays: Callable[[], Iterable[object]], clock: Clock
    ) -> None:
        self._pool = pool
        self._lowest = lowest
        self._board = board
        self._limits = limits
        self._relays = relays
        self._clock = clock
        self._pace = Pace()

    def make_room(self, waiter: Waiter[Any], may_wait: MayWait) -> None:
        """Preempt a request for this waiter, where that is allowed and helps. The capacity is there in the next turn of the event loop.

        Args:
            may_wait: whether a preempted request could wait again; a request that could not is left on its backend.
        """
        tier = waiter.place.tier
        now = self._clock()
        if waiter.given_way_to or tier >= Class.BATCH or not self._pace.allows(now):
            return
        candidates = first_to_give_way(self._candidates(tier))
        if candidates and (lacking := waiter.lacking()):
            for candidate in candidates[:MOST_LOOKS]:
                relay, story, charge = candidate.request
                place = place_back(story, charge)
                if self._helps(charge, lacking) and may_wait(place, place.deadline - now):
                    waiter.given_way_to = True
                    self._pace.gave_way()
                    _pull(relay, story, place, Class(tier))
                    return
        self._pace.found_none(now)

    def _helps(self, charge: Charge, lacking: Mapping[str, float]) -> bool:
        board = self._board
        tokens = lacking.get(charge.id)
        row = board.row_of[charge.id]
        return tokens is not None and has_no_room(board, row, tokens) != "" and room_without(board, row, tokens, charge)

    def _candidates(self, tier: int) -> list[Sent[tuple[ReplyRelay, Story, Charge]]]:
        candidates = []
        least = max(self._lowest, tier + 1)
        for relay in self._relays():
            if isinstance(relay, ReplyRelay) and unanswered(relay):
                story = relay.story
                charge, own = story.tried.charge, class_of(story)
                if charge is not None and own >= least and story.placed.pool == self._pool and self._may_give_way(relay, story, charge):
                    candidates.append(Sent(own, charge.at, (relay, story, charge)))
        return candidates

    def _may_give_way(self, relay: ReplyRelay, story: Story, charge: Charge) -> bool:
        placed, tried = story.placed, story.tried
        if charge.over or charge.begun or charge.id != relay.backend or placed.pulled_back or tried.failed or tried.hedged:
            return False
        if placed.queue_place is not None and placed.queue_place.by_share:
            return False  # else nothing would be left of the share of the lower ranks
        # a short reply that is not streamed does not show whether it has begun, unless the backend's limiter supposes a first token
        return story.asked.stream or charge.uncached_tokens >= LONG_PREFILL_TOKENS or self._limits.of(charge.id) is not None


def unanswered(relay: ReplyRelay) -> bool:
    """Whether the engine was asked and no part of an answer has come: no event of a stream, nor the head of a plain reply."""
    story = relay.story
    waits = relay.mode == "" or (relay.mode == "answer" and story.asked.stream)
    return waits and not story.attempt.events and relay.flight is not None and not relay.outcome.done()


def _pull(relay: ReplyRelay, story: Story, place: QueuedRequest, by: Class) -> None:
    placed = story.placed
    if placed.on_used is not None:
        placed.on_used(NO_USAGE)  # its tenant has its charge back
    placed.queue_place, placed.on_used, placed.pulled_back = place, None, True
    relay.end_with(PulledBack(by))
