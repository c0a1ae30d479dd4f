"""A request that waits, and what one tenant has waiting in one rank, in order. Pure; `tenancy.fairness` has the laws."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

OLDEST_EVERY: Final = 32
"""One in so many of a tenant's turns goes to its oldest request and not to that with the longest held prefix, so that a prefix in
fashion cannot keep the others out for ever: k-LPM (Dexter et al., arXiv 2502.04677), whose k is this one."""
LOOKS_PER_ROW: Final = 4
"""Requests of one tenant that are asked about in one go: where four cannot be placed, another tenant's may."""
NOT_YET: Final = 1 << 62
"""The order of arrival of who has not arrived: behind everybody."""


class Waiting(msgspec.Struct, eq=False):
    """One request that waits. The first four decide its place, so they stay as they are while it waits, but for `held` (see
    `FairQueue.hold`)."""

    tenant: str
    tier: int
    """`domain.priority.Class`: lower is sooner."""
    retry: bool
    """Whether its client has asked for it before, or its tenant is over a soft limit; ranks below all others of its tier."""
    cost: int
    """What it is charged when it is taken: uncached prompt tokens + 2 * expected output tokens."""
    deadline: float
    """Monotonic seconds; infinity for none."""
    entered_at: float
    size_bytes: int
    """What it holds in memory while it waits."""
    held: int = 0
    """Tokens of its prompt that some backend with room holds in its cache."""
    seq: int = NOT_YET
    """Order of arrival; given by the queue."""
    back: bool = False
    """It has had its turn and gave it to a more urgent one before anything came of it: it goes before all others of its tenant."""
    by_share: bool = False
    """What the ranks below the first are due let it through; set by the queue."""


Key = tuple[int, float, int]
"""Of a request among its tenant's: longest held prefix, then least slack, then first come."""

Head = tuple[int, int, int, int]
"""Of a tenant: fewest quanta served, then longest held prefix, then least served, then first come."""


def key_of(waiting: Waiting) -> Key:
    """Lower is sooner. All slacks shrink alike, so their order is that of the deadlines. One that is back stands as one whose whole
    prompt is held, so that its tenant, where it is in turn, is as soon in turn as it was."""
    return (-NOT_YET if waiting.back else -waiting.held, waiting.deadline, waiting.seq)


class Row:
    """What one tenant has waiting in one tier."""

    __slots__ = ("ages", "listed", "number", "picks", "ranked", "size_bytes", "skip", "tenant", "tokens", "total")

    def __init__(self, tenant: str, number: int, total: int) -> None:
        self.tenant = tenant
        self.number = number
        """Unique in its tier; breaks ties by order of arrival."""
        self.total = total
        """Tokens served, from where the tenant came in."""
        self.listed: Head | None = None
        """Under what it stands in order of turn; None while it is empty."""
        self.ranked: list[tuple[Key, Waiting]] = []
        self.ages: OrderedDict[int, Waiting] = OrderedDict()
        self.tokens = 0
        self.size_bytes = 0
        self.picks = 0
        self.skip = 0
        """How many of `ranked` could not be placed at the last look."""

    def add(self, waiting: Waiting) -> None:
        """Rank a request."""
        insort(self.ranked, (key_of(waiting), waiting))
        self.ages[waiting.seq] = waiting
        self.tokens += waiting.cost
        self.size_bytes += waiting.size_bytes

    def drop(self, waiting: Waiting) -> None:
        """Forget a request.

        Raises:
            KeyError: it does not wait here.
        """
        self.pull(waiting)
        del self.ages[waiting.seq]
        self.tokens -= waiting.cost
        self.size_bytes -= waiting.size_bytes

    def pull(self, waiting: Waiting) -> None:
        """Take a request out of the order.

        Raises:
            KeyError: it does not wait here, or its `held` was changed behind the queue's back.
        """
        at = self.place_of(waiting)
        if at == len(self.ranked) or self.ranked[at][1] is not waiting:
            raise KeyError(waiting.seq)
        del self.ranked[at]

    def place_of(self, waiting: Waiting) -> int:
        """How many rank before it."""
        return bisect_left(self.ranked, (key_of(waiting),))

    def looks(self) -> Iterator[Waiting]:
        """The first few in order."""
        if self.picks % OLDEST_EVERY == OLDEST_EVERY - 1 and not self.skip:
            yield next(iter(self.ages.values()))
        for _, waiting in islice(self.ranked, self.skip, self.skip + LOOKS_PER_ROW):
            yield waiting

    def passed(self) -> None:
        """None of the first few could be placed: the next look goes on behind them."""
        self.skip += LOOKS_PER_ROW
        if self.skip >= len(self.ranked):
            self.skip = 0
