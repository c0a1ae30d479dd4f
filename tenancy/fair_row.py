"""A waiting request, and the waiting requests of one tenant in one rank, in order. Pure; `tenancy.fairness` has the laws."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

OLDEST_EVERY: Final = 32
"""One in so many of a tenant's turns goes to its oldest request and not to the one with the longest held prefix, so that a popular
prefix cannot starve the other requests: k-LPM (Dexter et al., arXiv 2502.04677), whose k this is."""
LOOKS_PER_ROW: Final = 4
"""Requests of one tenant that are tried at a time: where four cannot be placed, another tenant's may."""
NOT_YET: Final = 1 << 62
"""The `seq` of a request that is not in the queue yet: after every other."""


class Waiting(msgspec.Struct, eq=False):
    """One request that waits. The fields that decide its place stay as they are while it waits, but for `held` (see
    `FairQueue.hold`)."""

    tenant: str
    tier: int
    """`domain.priority.Class`: lower is sooner."""
    retry: bool
    """Whether its client has sent it before, or its tenant is over a soft limit; it ranks below all others of its tier."""
    cost: int
    """Tokens charged to its tenant when it is taken: uncached prompt tokens + 2 * expected output tokens."""
    deadline: float
    """Monotonic seconds; infinity for none."""
    entered_at: float
    size_bytes: int
    """Memory that it takes while it waits."""
    held: int = 0
    """Tokens of its prompt that some backend with room holds in its cache."""
    seq: int = NOT_YET
    """Order of arrival; set by the queue."""
    back: bool = False
    """It was taken before and gave its place to a more urgent request before it was served: it goes before all others of its tenant."""
    by_share: bool = False
    """It was taken on the share of service that the ranks below the first are due; set by the queue."""


Key = tuple[int, float, int]
"""Order of a tenant's requests: longest held prefix, then least slack, then first come."""

Head = tuple[int, int, int, int]
"""Order of the tenants: fewest quanta served, then longest held prefix, then least served, then first come."""


def key_of(waiting: Waiting) -> Key:
    """Place of a request among its tenant's; lower is sooner. All slacks shrink alike, so their order is that of the deadlines. A
    request that is `back` ranks as if its whole prompt were held, so that its tenant's next turn comes as soon as the last one did."""
    return (-NOT_YET if waiting.back else -waiting.held, waiting.deadline, waiting.seq)


class Row:
    """The waiting requests of one tenant in one tier."""

    __slots__ = ("ages", "listed", "number", "picks", "ranked", "size_bytes", "skip", "tenant", "tokens", "total")

    def __init__(self, tenant: str, number: int, total: int) -> None:
        self.tenant = tenant
        self.number = number
        """Unique in its tier; breaks ties by order of arrival."""
        self.total = total
        """Tokens served, counted on from the total that the tenant started with."""
        self.listed: Head | None = None
        """The key under which the row is in the order of turn; None while the row is empty."""
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
        """How many requests rank before this one."""
        return bisect_left(self.ranked, (key_of(waiting),))

    def looks(self) -> Iterator[Waiting]:
        """The next few requests to try, in order; in one of `OLDEST_EVERY` turns the oldest comes first."""
        if self.picks % OLDEST_EVERY == OLDEST_EVERY - 1 and not self.skip:
            yield next(iter(self.ages.values()))
        for _, waiting in islice(self.ranked, self.skip, self.skip + LOOKS_PER_ROW):
            yield waiting

    def passed(self) -> None:
        """Note that none of `looks` could be placed: the next look goes on behind them."""
        self.skip += LOOKS_PER_ROW
        if self.skip >= len(self.ranked):
            self.skip = 0
