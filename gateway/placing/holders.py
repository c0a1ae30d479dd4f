"""Who has how many requests on one pool's engines, of this process: so that some room stays free for tenants with few. Pure.

Engines that are full are slow with everybody, also with a tenant whose turn comes at once. Where a part of the room is kept, a tenant
that has much more than the others is let into the rest only, as long as other tenants were there lately; a tenant that is alone
has everything. What is kept and not used is the price.
"""

from typing import Final

QUIET_S: Final = 30.0
"""For so long after its last request ended a tenant is one of those that room is kept for: a person reads an answer before asking again."""
MOST: Final = 4096
"""Of those are remembered; of more, who ended first is forgotten."""
MORE: Final = 3.0
BESIDES: Final = 1
"""So many times the mean of all others that are there, and so many requests besides, are more than a tenant's part. Of tenants that ask
alike chance gives somebody twice the mean all the time."""


class Holders:
    """One pool's.

    Args:
        kept: share of the room, 0 to 0.9, that is not for tenants with more than their part.
    """

    __slots__ = ("_counts", "_left", "_total", "kept")

    def __init__(self, kept: float = 0.0) -> None:
        self.kept = kept
        self._counts: dict[str, int] = {}
        self._left: dict[str, float] = {}
        self._total = 0

    def took(self, tenant: str) -> None:
        """One request more of a tenant; pair it with `gave_back`."""
        if self.kept:
            self._counts[tenant] = self._counts.get(tenant, 0) + 1
            self._left.pop(tenant, None)
            self._total += 1

    def gave_back(self, tenant: str, now: float) -> None:
        """It is over. `now` in seconds, never less than before."""
        if not self.kept:
            return
        self._total -= 1
        count = self._counts.pop(tenant) - 1
        if count:
            self._counts[tenant] = count
        else:
            left = self._left
            left[tenant] = now
            if len(left) > MOST:
                del left[next(iter(left))]

    def part(self, tenant: str, now: float) -> float:
        """Of the room that this tenant's next request may fill; 1 for all of it."""
        held = self._counts.get(tenant, 0)
        if held < 2:
            return 1.0
        left = self._left
        while left and now - left[next(iter(left))] > QUIET_S:
            del left[next(iter(left))]
        others = len(self._counts) + len(left) - 1
        return 1.0 - self.kept if others and (held - BESIDES) * others > MORE * (self._total - held) else 1.0
