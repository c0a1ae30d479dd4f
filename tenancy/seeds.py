"""Settled amounts of calendar counters, set from the ledger: the ledger is the source of truth, and counters are a cache of it. Values
and a port.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tenancy.limits import LimitWindow
from tenancy.rates import kind_of


class Seed(msgspec.Struct, frozen=True, gc=False):
    """The amount that should be settled in one calendar counter in one period.

    Without `instead_of` the settled amount becomes the larger of itself and `settled`: a seed that comes twice, or beside
    settlements, does no harm. With `instead_of` the settled amount becomes `settled` if it still is `instead_of`, which may lower
    it. Held amounts stay as they are.
    """

    key: str
    """Key of the limit line (`tenancy.limits.state_key`)."""
    window: LimitWindow
    """A calendar window, or a rolling one."""
    period: int
    """Number of the period (`tenancy.rates.Calendar.periods`); where another period is current, nothing happens. Of a rolling window
    one of its hours: a seed sets the amount of that hour."""
    settled: int
    instead_of: int | None = None
    zone: str = ""
    """The time zone of the limit (`tenancy.limits.Limit.zone`)."""

    def instead(self, had: int) -> int:
        """The amount that is to be settled in the place of the one that was."""
        if self.instead_of is None:
            return max(had, self.settled)
        return self.settled if self.instead_of == had else had

    @property
    def kind(self) -> int:
        """The kind of the counter."""
        return kind_of(self.window, self.zone)


class Tallies(Protocol):
    """Counters whose settled amounts can be set."""

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> list[int | None]:
        """Set the settled amounts of counters of one tag. Returns each settled amount after it, None where the period is not the
        current one; a seed of 0 without `instead_of` only reads. Raises CountersAway."""
        ...
