"""The order in which the requests that wait for one pool are served, and which request is displaced when too many wait. Pure.

    rank     (`FairQueue.next`) class, and inside a class first tries before retries
    tenant   (`Tier`, fair_tier.py) tenants that hold few slots before those that hold many; then fewest quanta of service: tokens,
             `uncached_in + 2 * expected_out`, corrected when the request has ended; among equals the tenant with the shortest
             request, then the least served
    request  (`key_of`, fair_tier.py) shortest first with ageing, by the seconds to compute what no backend has cached; one turn in
             32 the oldest

The algorithm is DLPM (Cao et al., "Locality-aware Fair Scheduling in LLM Serving", arXiv 2501.14312) with the weights and the lift of VTC
(Sheng et al., "Fairness in Serving Large Language Models", OSDI'24): prefixes decide between tenants, and so keep their place in
the caches, as long as no tenant is served a quantum more than the others. A tenant that comes starts a quantum behind the least served
tenant: a tenant that seldom asks hardly waits, however many requests of a noisy tenant are queued.

**Lower ranks do not starve.** Strict ranks would never serve `batch` while anything else waits. Ageing is no remedy: in an
overload every request grows old, so the classes would end where they matter. Instead the ranks below the first waiting rank together
get a share of the tokens that it is served (`SHARE`), in turn, as Kubernetes' API Priority and Fairness guarantees every priority level a
share of the concurrency. The highest class loses at most SHARE / (1 + SHARE) = 4.8 % by it, and nothing where no lower class waits.

**Laws**, for any two tenants that have something waiting in the same rank from one moment to another (tests/unit/routing):
- the charges of the two in between differ by at most 2 * (quantum + dearest request), and by two quanta more where one of them comes only
  then; the service really given, by that and the corrections for the requests still in flight. VTC's bound is
  2 * max(U, dearest request) with U = the whole batch;
- a request that can be placed is found within (rows / 4 + 1) * (longest row / 4 + 1) calls of `next`, by the first where all can;
- the bounds hold at every moment, and a request that is removed leaves no trace in the order of the others.

Cost: a few bisections each; `bench/decision` has the figures at 10,000 waiting.
"""

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import msgspec

from routing.fair_tier import HoldsMore, QueuedRequest, Tier

SHARE: Final = 1 / 20
"""Tokens that all ranks below the first rank with something waiting get together, as a share of the tokens which that rank is served."""
QUANTUM: Final = 8192
"""Tokens that a tenant may be served beyond the least served one before its turn ends: three or four average chat requests, so that
a prefix is used some times before another tenant's may push it out; and on an engine that prefills 10,000 tokens/s no tenant
waits a second longer for it."""
KEPT: Final = 8
"""One place in so many is reserved for requests to which others would give way: a request that would be the first to give way is
refused at once rather than let wait until another one needs its place."""
RANKS: Final = 8
"""Four classes, each in first tries and retries."""


ONE_BODY_BYTES: Final = 8 * 1024 * 1024
"""The largest body of a request as a gateway is set up usually."""


class QueueBounds(msgspec.Struct, frozen=True):
    """Bounds of the queue: in all, and for one tenant."""

    count: int = 2048
    size_bytes: int = 256 * 1024 * 1024
    tenant_count: int = 512
    tenant_bytes: int = 64 * 1024 * 1024

    def shared_by(self, processes: int) -> "QueueBounds":
        """The part of each of so many processes whose queues together have these bounds. Requests are rounded up, and a part has room for
        one body of `ONE_BODY_BYTES` in any case, if the whole has."""
        count, tenant_count = -(-self.count // processes), -(-self.tenant_count // processes)
        size, tenant_size = (max(whole // processes, min(whole, ONE_BODY_BYTES)) for whole in (self.size_bytes, self.tenant_bytes))
        return QueueBounds(count, size, tenant_count, tenant_size)


class Put(msgspec.Struct, frozen=True):
    """The result of `FairQueue.put`."""

    full: str | None = None
    """The bound of `QueueBounds` that refused the request; None where it waits."""
    evicted: tuple[QueuedRequest, ...] = ()
    """Lower ranked requests that gave way to it and do not wait any more: the caller refuses them."""

    @property
    def accepted(self) -> bool:
        """Whether the request waits."""
        return self.full is None


class Ahead(NamedTuple):
    """Tokens, of what waits now, that are likely served before a request."""

    above: int
    """Tokens of higher ranks: all of them. Requests of higher ranks that come meanwhile go first as well."""
    own: int
    """Tokens of its own rank."""
    below: int
    """Tokens of lower ranks, which have a share of what the others are served."""
    until: float
    """Tokens of whatever rank, until its own rank's share of them brings the request its turn; infinite for the highest rank."""


class FairQueue:
    """The queue of one pool.

    Args:
        bounds: how much may wait.
        quantum: tokens that a tenant may be ahead of the least served one.
    """

    def __init__(self, bounds: QueueBounds, quantum: int = QUANTUM) -> None:
        self._bounds = bounds
        self._quantum = quantum
        self._tiers = [Tier(quantum) for _ in range(RANKS)]
        self._seq = 0
        self._owed = 0.0
        """Tokens of service that the lower ranks are due."""
        self._turn = 0
        """The rank that was last served from what is owed."""
        self.count = 0
        self.size_bytes = 0
        self.served: Callable[[int, str, int], None] | None = None
        """Called with the rank, the tenant and the tokens of each charge and correction, for queues of other processes of the same pool."""

    def refused(self, waiting: QueuedRequest) -> str | None:
        """The bound of `QueueBounds` that would refuse a request now; None where it may wait."""
        rank = rank_of(waiting)
        return self._tenant_full(waiting, rank) or self._full(waiting, rank)

    def past(self, waiting: QueuedRequest, bounds: QueueBounds) -> str | None:
        """The bound of these that one more request would exceed, whoever else waits; None where it would not."""
        size, (count, held) = waiting.size_bytes, self._of_tenant(waiting.tenant)
        if count + 1 > bounds.tenant_count:
            return "tenant_count"
        if held + size > bounds.tenant_bytes:
            return "tenant_bytes"
        if self.count + 1 > bounds.count:
            return "count"
        return "size_bytes" if self.size_bytes + size > bounds.size_bytes else None

    def put(self, waiting: QueuedRequest) -> Put:
        """Let a request wait, where necessary instead of lower ranked ones.

        A request gives way only to one of a higher rank, or, where nothing of a lower rank waits, to one of its own rank whose
        tenant has at least two fewer waiting there: the longest row is cut first, so no tenant keeps the others out.
        """
        rank = rank_of(waiting)
        refused = self.refused(waiting)
        if refused:
            return Put(refused)
        bounds = self._bounds
        size = waiting.size_bytes
        evicted = []
        while self._over(self._of_tenant(waiting.tenant), bounds.tenant_count, bounds.tenant_bytes, size):
            lowest = next(tier for tier in reversed(self._tiers) if waiting.tenant in tier.rows)
            evicted.append(self._evict(lowest.rows[waiting.tenant].ranked[-1][1]))
        while self._over((self.count, self.size_bytes), bounds.count, bounds.size_bytes, size):
            evicted.append(self._evict(next(tier for tier in reversed(self._tiers) if tier.count).last()))
        self._seq += 1
        waiting.seq = self._seq
        self._tiers[rank].add(waiting)
        self.count += 1
        self.size_bytes += size
        return Put(None, tuple(evicted))

    def next(self, can_place: Callable[[QueuedRequest], bool], holds_more: HoldsMore | None = None) -> QueuedRequest | None:
        """The request whose turn it is among those that can be placed; it stays in the queue until `take`.

        At most `fair_tier.TURN_LOOKS` requests of each rank are tried. One that cannot be placed is passed over and keeps its place. Within
        a rank, tenants of which `holds_more` is true come last.
        """
        owed = self._owed_to() if self._owed >= self._quantum else None
        if owed is not None:
            waiting = self._tiers[owed].find(can_place, holds_more)
            if waiting is not None:
                return waiting
        for rank, tier in enumerate(self._tiers):
            if tier.count and rank != owed:
                waiting = tier.find(can_place, holds_more)
                if waiting is not None:
                    return waiting
        return None

    def take(self, waiting: QueuedRequest) -> None:
        """Remove a request that is served from now on, and charge its tenant.

        Raises:
            KeyError: the request does not wait.
        """
        rank = rank_of(waiting)
        first = next((at for at, tier in enumerate(self._tiers) if tier.count), rank)
        self._tiers[rank].serve(waiting)
        self._subtract(waiting)
        if self.served is not None:
            self.served(rank, waiting.tenant, waiting.cost)
        if rank > first:
            if self._owed >= self._quantum:
                self._owed -= waiting.cost
                self._turn = rank
                waiting.by_share = True
        elif any(tier.count for tier in self._tiers[rank + 1 :]):
            self._owed = min(self._owed + waiting.cost * SHARE, 2.0 * self._quantum)
        else:
            self._owed = min(self._owed, 0.0)

    def remove(self, waiting: QueuedRequest) -> None:
        """Remove a request that is not served: its caller is gone, or its deadline is over. No tenant is charged.

        Raises:
            KeyError: the request does not wait.
        """
        self._tiers[rank_of(waiting)].drop(waiting)
        self._subtract(waiting)

    def settle(self, waiting: QueuedRequest, used: int) -> None:
        """Correct what was charged for a request that was taken: it really used `used` tokens, weighted as `cost` is."""
        rank = rank_of(waiting)
        self._tiers[rank].shift(waiting.tenant, used - waiting.cost)
        if self.served is not None:
            self.served(rank, waiting.tenant, used - waiting.cost)

    def served_elsewhere(self, rank: int, tenant: str, tokens: int) -> None:
        """Charge a tenant what another process's queue served it, of either sign. Nobody is charged while nothing waits in the rank here:
        whoever comes then starts where all others do."""
        if self._tiers[rank].count:
            self._tiers[rank].shift(tenant, tokens)

    def hold(self, waiting: QueuedRequest, held: int) -> None:
        """Rank a request anew: a backend with room holds `held` tokens of its prompt by now.

        Raises:
            KeyError: the request does not wait.
        """
        if held != waiting.held:
            self._tiers[rank_of(waiting)].hold(waiting, held)

    def ahead_of(self, waiting: QueuedRequest) -> int:
        """Tokens that are likely served before a request that waits, or would be if it did now. O(log n).

        An estimate from what waits now: later requests of a higher class are not in it.
        """
        return sum(self.before(waiting)[:3])

    def before(self, waiting: QueuedRequest) -> Ahead:
        """Tokens that are likely served before a request, by the rank they are of. O(log n)."""
        rank = rank_of(waiting)
        above = sum([tier.tokens for tier in self._tiers[:rank]])
        own = self._tiers[rank].ahead_of(waiting)
        below = min(sum([tier.tokens for tier in self._tiers[rank + 1 :]]), int((above + own) * SHARE))
        if not rank:
            return Ahead(above, own, below, inf)
        sharing = max(1, len([at for at, tier in enumerate(self._tiers) if tier.count or at == rank]) - 1)
        return Ahead(above, own, below, max(0.0, self._quantum - self._owed + own * sharing) / SHARE)

    def tenant_count(self, tenant: str) -> int:
        """How many of a tenant's requests wait."""
        return self._of_tenant(tenant)[0]

    def in_rank(self, rank: int) -> int:
        """How many requests wait in one rank."""
        return self._tiers[rank].count

    def by_tier(self) -> list[int]:
        """How many requests wait, by class."""
        return [self._tiers[at].count + self._tiers[at + 1].count for at in range(0, RANKS, 2)]

    def by_tenant(self, most: int) -> list[tuple[str, list[int]]]:
        """The tenants with the most requests waiting, longest queue first, each with how many of them wait by class. O(tenants)."""
        counts: dict[str, list[int]] = {}
        for rank, tier in enumerate(self._tiers):
            for tenant, row in tier.rows.items():
                if row.ranked:
                    counts.setdefault(tenant, [0] * (RANKS // 2))[rank // 2] += len(row.ranked)
        return sorted(counts.items(), key=lambda item: (-sum(item[1]), item[0]))[:most]

    def __len__(self) -> int:
        return self.count

    def _owed_to(self) -> int | None:
        """The rank to serve next from what is owed: the ranks below the first with something waiting, round robin; None for none."""
        waits = [rank for rank, tier in enumerate(self._tiers) if tier.count][1:]
        return next((rank for rank in waits if rank > self._turn), waits[0] if waits else None)

    def _of_tenant(self, tenant: str, from_rank: int = 0) -> tuple[int, int]:
        rows = [row for tier in self._tiers[from_rank:] if (row := tier.rows.get(tenant)) is not None]
        return sum(len(row.ranked) for row in rows), sum(row.size_bytes for row in rows)

    def _tenant_full(self, waiting: QueuedRequest, rank: int) -> str | None:
        """The tenant's bound that would be exceeded even if all lower ranked requests of the tenant gave way; None for none."""
        count, size = self._of_tenant(waiting.tenant)
        lower_count, lower_size = self._of_tenant(waiting.tenant, rank + 1)
        most = self._bounds.tenant_count
        if not lower_count and any([waiting.tenant in tier.rows for tier in self._tiers[:rank]]):
            most -= most // KEPT
        if count - lower_count >= most:
            return "tenant_count"
        return "tenant_bytes" if size - lower_size + waiting.size_bytes > self._bounds.tenant_bytes else None

    def _full(self, waiting: QueuedRequest, rank: int) -> str | None:
        """The bound of the whole queue that would be exceeded even if all requests that may give way did; None for none."""
        lower = self._tiers[rank + 1 :]
        count = self.count - sum(tier.count for tier in lower)
        size = self.size_bytes - sum(tier.size_bytes for tier in lower) + waiting.size_bytes
        most = self._bounds.count
        most_bytes = self._bounds.size_bytes
        tier = self._tiers[rank]
        freed = 0
        if not any(tier.count for tier in lower):
            row = tier.rows.get(waiting.tenant)
            last = tier.last() if tier.count else None
            if last is not None and len(tier.rows[last.tenant].ranked) - (len(row.ranked) if row is not None else 0) >= 2:
                freed = last.size_bytes
            else:
                most -= most // KEPT
                most_bytes -= most_bytes // KEPT
        if count >= most + (freed > 0):
            return "count"
        return "size_bytes" if size - freed > most_bytes else None

    @staticmethod
    def _over(now: tuple[int, int], count: int, size_bytes: int, more: int) -> bool:
        return now[0] >= count or now[1] + more > size_bytes

    def _evict(self, waiting: QueuedRequest) -> QueuedRequest:
        self.remove(waiting)
        return waiting

    def _subtract(self, waiting: QueuedRequest) -> None:
        self.count -= 1
        self.size_bytes -= waiting.size_bytes


def rank_of(waiting: QueuedRequest) -> int:
    """The rank of a request, from 0, which is served first, to below `RANKS`."""
    return 2 * waiting.tier + waiting.retry
