"""The waiting requests of one rank: which tenant's turn it is, and which of its requests is first. Pure; `routing.fair_queue` has the laws.

A tenant with a request that waits in a `Tier` has a row (`TenantQueue`, its `QueuedRequest`s in order), and a row has a running total of
the tokens that its tenant was served here. Totals are compared by quanta: tenants whose total is in a lower quantum come first, and of
those in the same quantum the tenant with the longest held prefix, then the least served. So prefixes decide between tenants, and keep their
places in the caches, as long as no tenant is served a quantum more than the others. This is equivalent to DLPM's deficits and refills where
all tenants begin alike; in this form there is nothing to refill, and every step costs a few bisections.

- A tenant that comes starts in the quantum below that in which the least served tenant has been, so that a tenant that seldom asks does not
  wait behind one that always does; no further below, so that no tenant saves up more service than that while it asks for nothing (the lift
  of VTC, less one quantum). A tenant whose total was higher when it left starts with that total.
- Totals stay when nothing waits any more: a pool whose load is about its capacity has a queue again and again, each time a short one.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Final

import msgspec

OLDEST_EVERY: Final = 32
"""One in so many of a tenant's turns goes to its oldest request and not to the one with the longest held prefix, so that a popular
prefix cannot starve the other requests: k-LPM (Dexter et al., arXiv 2502.04677), whose k this is."""
LOOKS_PER_ROW: Final = 4
"""Requests of one tenant that are tried at a time: where four cannot be placed, another tenant's may."""
NOT_YET: Final = 1 << 62
"""The `seq` of a request that is not in the queue yet: after every other."""


class QueuedRequest(msgspec.Struct, eq=False):
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
    """Whether the request was preempted: dispatched, then put back for a more urgent request. It goes before all others of its tenant."""
    by_share: bool = False
    """Whether the request was dispatched on the share of service reserved for the ranks below the first; set by the queue."""
    order_s: float = 0.0
    """Its place among its tenant's requests, lower is sooner: `in_order_s`."""


AGEING: Final = 0.2
"""Seconds of a request's own size that one second of waiting makes up for."""


def in_order_s(size_s: float, entered_at: float) -> float:
    """The place of a request among its tenant's: the shortest first, with ageing.

    A request of `size_s` seconds goes before every request that comes more than size_s / `AGEING` after it, however short that is: nothing
    starves. Shortest first keeps the mean wait least (Smith 1956); ageing bounds what the longest pays for it.

    Args:
        size_s: seconds to compute its uncached prompt tokens, on the backend that has most of it cached.
        entered_at: when it came, monotonic seconds.
    """
    return size_s + AGEING * entered_at


HoldsMore = Callable[[str], bool]
"""Whether a tenant holds many slots now, beside those that wait with it."""

PlaceKey = tuple[float, int, int]
"""Order of a tenant's requests: shortest with ageing, then longest held prefix, then first come."""

RowHead = tuple[int, float, int, int, int]
"""Order of the tenants: fewest quanta served, then the shortest first request with ageing, then its longest held prefix, then least served,
then first come."""


def key_of(waiting: QueuedRequest) -> PlaceKey:
    """Place of a request among its tenant's; lower is sooner. A request that is `back` ranks before all that are not, so that its tenant's
    next turn comes as soon as the last one did. A deadline gives no place: it only ends a wait."""
    return (-inf if waiting.back else waiting.order_s, -waiting.held, waiting.seq)


class TenantQueue:
    """The waiting requests of one tenant in one tier."""

    __slots__ = ("ages", "listed", "number", "picks", "ranked", "size_bytes", "skip", "tenant", "tokens", "total")

    def __init__(self, tenant: str, number: int, total: int) -> None:
        self.tenant = tenant
        self.number = number
        """Unique in its tier; breaks ties by order of arrival."""
        self.total = total
        """Tokens served, counted on from the total that the tenant started with."""
        self.listed: RowHead | None = None
        """The key under which the row is in the order of turn; None while the row is empty."""
        self.ranked: list[tuple[PlaceKey, QueuedRequest]] = []
        self.ages: OrderedDict[int, QueuedRequest] = OrderedDict()
        self.tokens = 0
        self.size_bytes = 0
        self.picks = 0
        self.skip = 0
        """How many of `ranked` could not be placed at the last look."""

    def add(self, waiting: QueuedRequest) -> None:
        """Rank a request."""
        insort(self.ranked, (key_of(waiting), waiting))
        self.ages[waiting.seq] = waiting
        self.tokens += waiting.cost
        self.size_bytes += waiting.size_bytes

    def drop(self, waiting: QueuedRequest) -> None:
        """Forget a request.

        Raises:
            KeyError: it does not wait here.
        """
        self.pull(waiting)
        del self.ages[waiting.seq]
        self.tokens -= waiting.cost
        self.size_bytes -= waiting.size_bytes

    def pull(self, waiting: QueuedRequest) -> None:
        """Take a request out of the order.

        Raises:
            KeyError: it does not wait here, or its `held` was changed behind the queue's back.
        """
        at = self.place_of(waiting)
        if at == len(self.ranked) or self.ranked[at][1] is not waiting:
            raise KeyError(waiting.seq)
        del self.ranked[at]

    def place_of(self, waiting: QueuedRequest) -> int:
        """How many requests rank before this one."""
        return bisect_left(self.ranked, (key_of(waiting),))

    def looks(self) -> Iterator[QueuedRequest]:
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


TURN_LOOKS: Final = 16
"""Requests of one tier that are tried at a time. To place one takes some tens of microseconds, and the event loop does nothing else
meanwhile."""
SUMMED_ROWS: Final = 32
"""Tenants whose waiting tokens are added up for an estimate; further tenants are taken to be like them on average."""
MOST_AHEAD: Final = 4096
"""Tenants remembered that have nothing waiting but were served more than the others: the one that left first is forgotten first."""


class Tier:
    """The rows of one rank."""

    __slots__ = (
        "_ahead",
        "_by_count",
        "_heads",
        "_least",
        "_numbers",
        "_order",
        "_quantum",
        "_skip",
        "count",
        "rows",
        "size_bytes",
        "tokens",
    )

    def __init__(self, quantum: int) -> None:
        self.rows: dict[str, TenantQueue] = {}
        self.count = 0
        self.tokens = 0
        self.size_bytes = 0
        self._order: list[tuple[int, int, TenantQueue]] = []
        """The rows by total: the least served tenant first."""
        self._heads: list[tuple[RowHead, TenantQueue]] = []
        """The rows, in order of their turn."""
        self._least = 0
        """The highest that the least total has been."""
        self._by_count: list[tuple[int, int, TenantQueue]] = []
        """The rows by how many requests wait: the tenant with the most last."""
        self._ahead: OrderedDict[str, int] = OrderedDict()
        """Totals of tenants that have nothing waiting and would start with less than they left with."""
        self._numbers = 0
        self._quantum = max(quantum, 1)
        self._skip = 0

    def add(self, waiting: QueuedRequest) -> None:
        """Rank a request among its tenant's, and its tenant among the others if it is the first."""
        row = self.rows.get(waiting.tenant)
        if row is None:
            self._numbers += 1
            row = self.rows[waiting.tenant] = TenantQueue(waiting.tenant, self._numbers, self._start(waiting.tenant))
            self._ahead.pop(waiting.tenant, None)
            insort(self._order, (row.total, row.number, row))
        else:
            self._unsize(row)
        row.add(waiting)
        self._list(row)
        insort(self._by_count, (len(row.ranked), row.number, row))
        self._count(waiting, 1)

    def drop(self, waiting: QueuedRequest) -> None:
        """Forget a request that does not wait any more, and its tenant's row with the tenant's last request.

        Raises:
            KeyError: it does not wait here.
        """
        row = self.rows[waiting.tenant]
        size = len(row.ranked)
        row.drop(waiting)
        del self._by_count[bisect_left(self._by_count, (size, row.number))]
        self._count(waiting, -1)
        self._list(row)
        if row.ranked:
            insort(self._by_count, (len(row.ranked), row.number, row))
        else:
            self._leave(row)

    def hold(self, waiting: QueuedRequest, held: int) -> None:
        """Rank a request anew among its tenant's: `held` tokens of its prompt are held now.

        Raises:
            KeyError: it does not wait here.
        """
        row = self.rows[waiting.tenant]
        row.pull(waiting)
        waiting.held = held
        insort(row.ranked, (key_of(waiting), waiting))
        self._list(row)

    def serve(self, waiting: QueuedRequest) -> None:
        """Charge a request to its tenant, and forget it."""
        row = self.rows[waiting.tenant]
        row.picks += 1
        row.skip = self._skip = 0
        self.shift(row.tenant, waiting.cost)
        self.drop(waiting)

    def shift(self, tenant: str, tokens: int) -> None:
        """Add `tokens`, of either sign, to what a tenant was served, whether it has anything waiting or not."""
        row = self.rows.get(tenant)
        if row is not None:
            del self._order[bisect_left(self._order, (row.total, row.number))]
            row.total += tokens
            insort(self._order, (row.total, row.number, row))
            self._list(row)
        else:
            self._remember(tenant, self._start(tenant) + tokens)
        self._rise()

    def find(self, can_place: Callable[[QueuedRequest], bool], holds_more: HoldsMore | None = None) -> QueuedRequest | None:
        """The first request in order that can be placed; None where none of the first `TURN_LOOKS` can.

        Tenants of which `holds_more` is true come after all others. Where the looks run out, the next call goes on behind the rows tried,
        so that requests that cannot be placed hide no others for long.
        """
        looks = TURN_LOOKS
        for row in islice(self._in_turn(holds_more), self._skip, None):
            for waiting in row.looks():
                if looks == 0:
                    return None
                looks -= 1
                if can_place(waiting):
                    return waiting
            row.passed()
            self._skip += 1
        self._skip = 0
        return None

    def _in_turn(self, holds_more: HoldsMore | None) -> Iterable[TenantQueue]:
        later = []
        for _, row in self._heads:
            if holds_more is not None and holds_more(row.tenant):
                later.append(row)
            else:
                yield row
        yield from later

    def last(self) -> QueuedRequest:
        """The first request to give way: the last in order of the tenant that has the most waiting here. The tier is not empty."""
        return self._by_count[-1][2].ranked[-1][1]

    def ahead_of(self, waiting: QueuedRequest) -> int:
        """Tokens in this tier that are likely served before a request. An estimate: what its tenant has in front of it, taken at the
        average cost, and as much for each other tenant, as far as that has so much waiting."""
        if not self._order:
            return 0
        row = self.rows.get(waiting.tenant)
        least = self._order[0][0]
        own = own_tokens = 0
        total = self._start(waiting.tenant)
        if row is not None:
            own = row.tokens * row.place_of(waiting) // len(row.ranked)
            total = row.total
            own_tokens = row.tokens
        # tenants that were served a quantum more come after it, unless what its own tenant has in front of it takes that long
        behind = bisect_left(self._order, ((total + own) // self._quantum * self._quantum + self._quantum,))
        later = len(self._order) - behind
        seen = [row.tokens for _, _, row in islice(self._order, behind, behind + SUMMED_ROWS)]
        after = sum(seen) * later // len(seen) if seen else 0
        other_tenants = behind - (row is not None)
        return own + max(0, min(self.tokens - own_tokens - after, other_tenants * max(0, own + total - least + self._quantum // 2)))

    def _start(self, tenant: str) -> int:
        """The total that a tenant without a row would start with."""
        floor = self._floor()
        return max(self._ahead.get(tenant, floor), floor)

    def _floor(self) -> int:
        """Where the quantum below that of the least served tenant begins: the lead of a new tenant is at least one whole quantum."""
        return (self._least // self._quantum - 1) * self._quantum

    def _rise(self) -> None:
        if self._order and self._order[0][0] > self._least:
            self._least = self._order[0][0]

    def _list(self, row: TenantQueue) -> None:
        """Put a row where it belongs in order of turn."""
        key = (row.total // self._quantum, *row.ranked[0][0][:2], row.total, row.number) if row.ranked else None
        if key != row.listed:
            if row.listed is not None:
                del self._heads[bisect_left(self._heads, (row.listed,))]
            if key is not None:
                insort(self._heads, (key, row))
            row.listed = key

    def _unsize(self, row: TenantQueue) -> None:
        del self._by_count[bisect_left(self._by_count, (len(row.ranked), row.number))]

    def _count(self, waiting: QueuedRequest, sign: int) -> None:
        self.count += sign
        self.tokens += sign * waiting.cost
        self.size_bytes += sign * waiting.size_bytes

    def _leave(self, row: TenantQueue) -> None:
        del self.rows[row.tenant]
        del self._order[bisect_left(self._order, (row.total, row.number))]
        if not self._order:
            self._skip = 0
        self._rise()
        self._remember(row.tenant, row.total)

    def _remember(self, tenant: str, total: int) -> None:
        self._ahead.pop(tenant, None)
        if total > self._floor():
            self._ahead[tenant] = total
            if len(self._ahead) > MOST_AHEAD:
                self._ahead.popitem(last=False)
