"""Takes a request that nothing has come of back from its backend, for a more urgent one that waits: see `preemption` for which.

It costs nothing while nobody waits: who could give way is looked for among the relays under way, and only for a waiter whose turn it is.
The one that gives way keeps its hold, its deadline and its age, is charged nothing, and goes to the front of its tenant's requests; its
backend, its retries and the suspicion of deadly requests do not count it.
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
from routing.board import Board, Charge
from routing.room import has_no_room, room_without
from tenancy.fair_row import Waiting

MOST_LOOKS: Final = 16
"""Of those that could give way, as many are looked at closely."""

MayWait = Callable[[Waiting, float], bool]
"""Whether a request of this place could wait so many seconds."""


class PulledBack(Fault):
    """It gave its place to a more urgent one, and waits for another turn. Its caller never hears of it."""

    def __init__(self, by: Class) -> None:
        super().__init__(
            Kind.OVERLOADED,
            "This model is overloaded, and others went before this request. Try again shortly.",
            retry=Retry(should=True, after_s=1.0),
            detail=f"gave its place on a backend to {by.word}",
        )


class Pulling:
    """Of one pool.

    Args:
        lowest: requests of this class and of those after it may give way, to those of higher classes than their own.
        relays: all under way, of every pool.
    """

    __slots__ = ("_board", "_clock", "_limits", "_lowest", "_pace", "_pool", "_relays")

    def __init__(
        self, pool: str, lowest: Class, board: Board, limits: Limits, relays: Callable[[], Iterable[object]], clock: Clock
    ) -> None:
        self._pool = pool
        self._lowest = lowest
        self._board = board
        self._limits = limits
        self._relays = relays
        self._clock = clock
        self._pace = Pace()

    def for_one(self, waiter: Waiter[Any], may_wait: MayWait) -> None:
        """Make room for the one whose turn it is, if it may have that at another's cost. The room is there in the loop's next turn.

        Args:
            may_wait: whether one that gives way could wait for another turn; who could not is left where it is.
        """
        tier, now = waiter.place.tier, self._clock()
        if waiter.given_way_to or tier >= Class.BATCH or not self._pace.allows(now):
            return
        found = first_to_give_way(self._sent(tier))
        if found and (lacking := waiter.lacking()):
            for one in found[:MOST_LOOKS]:
                relay, story, charge = one.what
                place = place_back(story, charge)
                if self._helps(charge, lacking) and may_wait(place, place.deadline - now):
                    waiter.given_way_to = True
                    self._pace.gave()
                    _pull(relay, story, place, Class(tier))
                    return
        self._pace.nobody(now)

    def _helps(self, charge: Charge, lacking: Mapping[str, float]) -> bool:
        board, tokens = self._board, lacking.get(charge.id)
        row = board.row_of[charge.id]
        return tokens is not None and has_no_room(board, row, tokens) != "" and room_without(board, row, tokens, charge)

    def _sent(self, tier: int) -> list[Sent[tuple[ReplyRelay, Story, Charge]]]:
        found = []
        least = max(self._lowest, tier + 1)
        for relay in self._relays():
            if isinstance(relay, ReplyRelay) and unanswered(relay):
                story = relay.story
                charge, own = story.charge, class_of(story)
                if charge is not None and own >= least and story.pool == self._pool and self._may_give_way(relay, story, charge):
                    found.append(Sent(own, charge.at, (relay, story, charge)))
        return found

    def _may_give_way(self, relay: ReplyRelay, story: Story, charge: Charge) -> bool:
        if charge.over or charge.begun or charge.id != relay.backend or story.pulled_back or story.failed or story.hedged:
            return False
        if story.place is not None and story.place.by_share:
            return False  # the share of the lower ranks would be none
        # of a short plain reply nothing shows whether it has begun, unless the backend's limit supposes it
        return story.stream or charge.uncached_tokens >= LONG_PREFILL_TOKENS or self._limits.of(charge.id) is not None


def unanswered(relay: ReplyRelay) -> bool:
    """Whether its engine was asked and nothing of an answer has come: no event of a stream, nor the head of a plain one."""
    story = relay.story
    waits = relay.mode == "" or (relay.mode == "answer" and story.stream)
    return waits and not story.events and relay.flight is not None and not relay.outcome.done()


def _pull(relay: ReplyRelay, story: Story, place: Waiting, by: Class) -> None:
    if story.on_used is not None:
        story.on_used(NO_USAGE)  # its tenant has its charge back
    story.place, story.on_used, story.pulled_back = place, None, True
    relay.end_with(PulledBack(by))
