"""What the gateway needs of stores for the books of holds: counters and the ledger. `tenancy.directory_ports` has the rest."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tenancy.hold import Admission, Beat, Hold, LineState
from tenancy.limits import Amounts, Group
from tenancy.usage_event import UsageEvent


class Counters(Protocol):
    """The shared books of holds: which are open, and how far every limit is used. One decision covers every limit of a hold."""

    in_process: bool
    """True when no call ever suspends, so that nothing can cut a settlement short."""

    @property
    def crowded(self) -> int:
        """Decisions so far about end users beyond the bound on a tenant's, which share one."""
        ...

    async def admit(self, hold: Hold) -> Admission:
        """Reserve `hold.amounts` in every line of every group, or nothing in any. The same id again returns Admitted and
        reserves nothing more."""
        ...

    async def beat(self, beats: Sequence[Beat]) -> None:
        """Extend the leases of holds that are under way, note what was delivered, and give back what can no longer be used. A
        hold that the store has lost is opened again."""
        ...

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """Close a hold with what it used; only the first settlement counts. Never raises for a store that is away: it is
        done later, or the hold is reaped."""
        ...

    async def look(self, group: Group) -> list[LineState]:
        """How each line of a group stands now. Raises CountersAway."""
        ...


class Seats(msgspec.Struct, frozen=True):
    """Who else does the same work."""

    count: int
    """Processes that do it, this one included."""
    rank: int
    """This one's place among them, from 0; it changes only when one comes or goes."""


class Presence(Protocol):
    """Which processes of the whole deployment are alive, by the work they share."""

    async def beat(self, group: str) -> Seats:
        """Say that this process does the work of `group`, to be said again within the time after which it counts as gone. Raises
        CountersAway."""
        ...

    async def leave(self, group: str) -> None:
        """It does it no more. Raises CountersAway, and is then gone after that time all the same."""
        ...


class CountersAway(Exception):
    """The counter store cannot be asked now; the message says why."""


class UsageLog(Protocol):
    """Where finished requests are written down for good."""

    def append(self, event: UsageEvent) -> None:
        """Take one event; durable within the fsync interval. Never waits and never raises: what cannot be kept is counted and
        alarmed."""
        ...
