"""The waiting requests of one rank: whose turn it is, and which of that tenant's is first. Pure; `tenancy.fairness` has the laws.

A tenant with something waiting here has a row, and a row has a running total of the tokens its tenant was served here. Totals are told
apart by quanta: tenants whose total lies in a lower one come first, and of those in the same one the tenant with the longest held
prefix, then the least served. So prefixes decide between tenants, and keep their places in the caches, as long as nobody is served a
quantum more than the others. That is what DLPM's deficits and refills come to, where all begin alike; written so, there is nothing to
refill, and every step costs a few bisections.

- A tenant that comes starts in the quantum below that in which the least served one has been, so that who seldom asks does not wait
  behind who always does; no further behind, so that nobody saves up more service than that while it asks for nothing (the lift of
  VTC, less one quantum). One that has had more when it leaves finds its total again.
- Totals stay when nobody waits any more: a pool whose load is about what it can answer has a line again and again, each time a short one.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

from tenancy.fair_row import Head, Row, Waiting, key_of

LOOKS: Final = 16
"""Requests of one tier that are asked about in one go. To place one takes some tens of microseconds, and the loop does nothing else
meanwhile."""
SUMMED: Final = 32
"""Tenants whose waiting tokens are added up for an estimate; those of further ones are taken to be like theirs."""
MOST_AHEAD: Final = 4096
"""Tenants that wait for nothing but were served more than the others: the one that left first is forgotten first."""


class Tier:
    """The rows of one rank."""

    __slots__ = ("_ahead", "_fattest", "_heads", "_least", "_numbers", "_order", "_quantum", "_skip", "count", "rows", "size_bytes",
                 "tokens")  # fmt: skip

    def __init__(self, quantum: int) -> None:
        self.rows: dict[str, Row] = {}
        self.count = 0
        self.tokens = 0
        self.size_bytes = 0
        self._order: list[tuple[int, int, Row]] = []
        """By total: the least served tenant first."""
        self._heads: list[tuple[Head, Row]] = []
        """The rows, in order of their turn."""
        self._least = 0
        """The highest that the least total has been."""
        self._fattest: list[tuple[int, int, Row]] = []
        """By how many requests wait: the tenant with the most last."""
        self._ahead: OrderedDict[str, int] = OrderedDict()
        """Totals of tenants that wait for nothing and would start lower than they left."""
        self._numbers = 0
        self._quantum = max(quantum, 1)
        self._skip = 0

    def add(self, waiting: Waiting) -> None:
        """Rank a request among its tenant's, and its tenant among the others if it is the first."""
        row = self.rows.get(waiting.tenant)
        if row is None:
            self._numbers += 1
            row = self.rows[waiting.tenant] = Row(waiting.tenant, self._numbers, self._start(waiting.tenant))
            self._ahead.pop(waiting.tenant, None)
            insort(self._order, (row.total, row.number, row))
        else:
            self._unsize(row)
        row.add(waiting)
        self._list(row)
        insort(self._fattest, (len(row.ranked), row.number, row))
        self._count(waiting, 1)

    def drop(self, waiting: Waiting) -> None:
        """Forget a request that is gone, and its tenant with its last one.

        Raises:
            KeyError: it does not wait here.
        """
        row = self.rows[waiting.tenant]
        size = len(row.ranked)
        row.drop(waiting)
        del self._fattest[bisect_left(self._fattest, (size, row.number))]
        self._count(waiting, -1)
        self._list(row)
        if row.ranked:
            insort(self._fattest, (len(row.ranked), row.number, row))
        else:
            self._leave(row)

    def hold(self, waiting: Waiting, held: int) -> None:
        """Rank a request anew among its tenant's.

        Raises:
            KeyError: it does not wait here.
        """
        row = self.rows[waiting.tenant]
        row.pull(waiting)
        waiting.held = held
        insort(row.ranked, (key_of(waiting), waiting))
        self._list(row)

    def serve(self, waiting: Waiting) -> None:
        """A request goes, and its tenant is charged."""
        row = self.rows[waiting.tenant]
        row.picks += 1
        row.skip = self._skip = 0
        self.shift(row.tenant, waiting.cost)
        self.drop(waiting)

    def shift(self, tenant: str, tokens: int) -> None:
        """Correct what a tenant was served by `tokens`, of either sign. Nobody is asked to remember it where nobody waits."""
        row = self.rows.get(tenant)
        if row is not None:
            del self._order[bisect_left(self._order, (row.total, row.number))]
            row.total += tokens
            insort(self._order, (row.total, row.number, row))
            self._list(row)
        else:
            self._remember(tenant, self._start(tenant) + tokens)
        self._rise()

    def find(self, can_place: Callable[[Waiting], bool]) -> Waiting | None:
        """The first request in order that can be placed; None where none of the first `LOOKS` can.

        Where the looks run out the next call goes on behind them, so that nobody who cannot be placed hides the others for long.
        """
        looks = LOOKS
        for _, row in islice(self._heads, self._skip, None):
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

    def last(self) -> Waiting:
        """The first to give way: the last in order of the tenant that has the most waiting here. There is one."""
        return self._fattest[-1][2].ranked[-1][1]

    def ahead_of(self, waiting: Waiting) -> int:
        """Tokens in this tier that are likely served before it. An estimate: what its tenant has in front of it, taken at the average
        cost, and as much for each other tenant, as far as they have it."""
        if not self._order:
            return 0
        row, least = self.rows.get(waiting.tenant), self._order[0][0]
        own = own_tokens = 0
        total = self._start(waiting.tenant)
        if row is not None:
            own = row.tokens * row.place_of(waiting) // len(row.ranked)
            total, own_tokens = row.total, row.tokens
        # who has had a quantum more comes after it, unless what its tenant has in front of it takes that long
        behind = bisect_left(self._order, ((total + own) // self._quantum * self._quantum + self._quantum,))
        later = len(self._order) - behind
        seen = [one.tokens for _, _, one in islice(self._order, behind, behind + SUMMED)]
        after = sum(seen) * later // len(seen) if seen else 0
        others = behind - (row is not None)
        return own + max(0, min(self.tokens - own_tokens - after, others * max(0, own + total - least + self._quantum // 2)))

    def _start(self, tenant: str) -> int:
        """The total of a tenant that comes."""
        floor = self._floor()
        return max(self._ahead.get(tenant, floor), floor)

    def _floor(self) -> int:
        """Where the quantum below that of the least served one begins, so that it is a whole one."""
        return (self._least // self._quantum - 1) * self._quantum

    def _rise(self) -> None:
        if self._order and self._order[0][0] > self._least:
            self._least = self._order[0][0]

    def _list(self, row: Row) -> None:
        """Put a row where it belongs in order of turn."""
        key = (row.total // self._quantum, row.ranked[0][0][0], row.total, row.number) if row.ranked else None
        if key != row.listed:
            if row.listed is not None:
                del self._heads[bisect_left(self._heads, (row.listed,))]
            if key is not None:
                insort(self._heads, (key, row))
            row.listed = key

    def _unsize(self, row: Row) -> None:
        del self._fattest[bisect_left(self._fattest, (len(row.ranked), row.number))]

    def _count(self, waiting: Waiting, sign: int) -> None:
        self.count += sign
        self.tokens += sign * waiting.cost
        self.size_bytes += sign * waiting.size_bytes

    def _leave(self, row: Row) -> None:
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
