"""What is settled of calendar counters, set from outside: from the ledger, which is the truth that counters are a cache of. Values
and a port.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tenancy.limits import Window


class Seed(msgspec.Struct, frozen=True, gc=False):
    """What should be settled of one calendar counter in one period.

    Without `instead_of` what is settled becomes the larger of what it is and `settled`: a seed that comes twice, or beside
    settlements, changes nothing that is right. With it, it becomes `settled` if it still is `instead_of`, which may lower it.
    Held amounts stay as they are.
    """

    key: str
    """Of the line (`tenancy.limits.state_key`)."""
    window: Window
    """A calendar one."""
    period: int
    """Its number (`tenancy.counting.Calendar.periods`). Where another one is current, nothing happens."""
    settled: int
    instead_of: int | None = None


class Tallies(Protocol):
    """Counters whose settled amounts can be set."""

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> list[int | None]:
        """Set what is settled of counters of one tag. Answers what is settled of each after it, None where the period is not the
        current one; a seed of 0 only asks. Raises CountersAway."""
        ...
