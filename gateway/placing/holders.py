"""How many requests each tenant has in flight on one pool's engines, of this process, so that some capacity stays reserved for tenants
with few. Pure.

Full engines are slow for every tenant, also for one whose request need not wait in the queue. Where a share of the capacity is reserved,
a tenant that has much more in flight than the others may use the rest only, as long as other tenants were active lately; a tenant that
is alone may use everything. The price is reserved capacity that is not used.
"""

from typing import Final

QUIET_S: Final = 30.0
"""Seconds for which a tenant counts as active after its last request ended: a person reads an answer before asking again."""
MOST: Final = 4096
"""Tenants without requests that are remembered as active; beyond that the one that ended first is forgotten."""
MORE: Final = 3.0
BESIDES: Final = 1
"""A tenant has more than its share when it has more than `MORE` times the mean of all other active tenants, and `BESIDES` requests on
top. Among tenants with equal traffic chance gives one of them twice the mean all the time."""


class Holders:
    """The shares of one pool's tenants.

    Args:
        kept: share of the capacity, 0 to 0.9, that is reserved for tenants with no more than their share.
    """

    __slots__ = ("_counts", "_ended_at", "_total", "kept")

    def __init__(self, kept: float = 0.0) -> None:
        self.kept = kept
        self._counts: dict[str, int] = {}
        self._ended_at: dict[str, float] = {}
        self._total = 0

    def took(self, tenant: str) -> None:
        """Count one more request of a tenant in flight; to be paired with `gave_back`."""
        if self.kept:
            self._counts[tenant] = self._counts.get(tenant, 0) + 1
            self._ended_at.pop(tenant, None)
            self._total += 1

    def gave_back(self, tenant: str, now: float) -> None:
        """Count the end of a tenant's request. `now` in seconds, never less than before."""
        if not self.kept:
            return
        self._total -= 1
        count = self._counts.pop(tenant) - 1
        if count:
            self._counts[tenant] = count
        else:
            ended_at = self._ended_at
            ended_at[tenant] = now
            if len(ended_at) > MOST:
                del ended_at[next(iter(ended_at))]

    def part(self, tenant: str, now: float) -> float:
        """The part of the capacity that this tenant's next request may fill; 1 for all of it."""
        held = self._counts.get(tenant, 0)
        if held < 2:
            return 1.0
        ended_at = self._ended_at
        while ended_at and now - ended_at[next(iter(ended_at))] > QUIET_S:
            del ended_at[next(iter(ended_at))]
        other_tenants = len(self._counts) + len(ended_at) - 1
        return 1.0 - self.kept if other_tenants and (held - BESIDES) * other_tenants > MORE * (self._total - held) else 1.0
