"""Ports of the counter store, of the presence of processes, and of the usage log. `tenancy.directory_ports` has the directory's."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tenancy.hold import Admission, Beat, Hold, LimitUsage
from tenancy.limits import Amounts, Group
from tenancy.usage import UsageEvent


class Counters(Protocol):
    """The counter store: which holds are open, and how far every limit is used. One decision covers every limit of a hold."""

    in_process: bool
    """True when no call ever suspends, so that nothing can cut a settlement short."""

    @property
    def crowded(self) -> int:
        """Decisions so far about end users beyond the bound on a tenant's end users, which share one counter."""
        ...

    async def admit(self, hold: Hold) -> Admission:
        """Reserve `hold.amounts` in every line of every group, or nothing in any. The same id again returns Admitted and
        reserves nothing more."""
        ...

    async def beat(self, beats: Sequence[Beat]) -> None:
        """Extend the leases of open holds, note what was delivered, and release what can no longer be used. A hold that the store has
        lost is opened again."""
        ...

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """Close a hold with what it used; only the first settlement counts. Never raises for a store that is away: the settlement is
        done later, or the hold is reaped."""
        ...

    async def look(self, group: Group) -> list[LimitUsage]:
        """How each line of a group stands now. Raises CountersAway."""
        ...


class Seats(msgspec.Struct, frozen=True):
    """This process's place among the processes that share some work."""

    count: int
    """Processes that do the work, this one included."""
    rank: int
    """This process's place among them, from 0; it changes only when a process comes or goes."""


class Presence(Protocol):
    """The live processes of the whole deployment, by the work they share."""

    async def beat(self, group: str) -> Seats:
        """Announce that this process does the work of `group`. To be repeated before the time is over after which the process counts as
        gone. Raises CountersAway."""
        ...

    async def leave(self, group: str) -> None:
        """Announce that this process no longer does the work. Raises CountersAway; the process then counts as gone after that time all
        the same."""
        ...


class CountersAway(Exception):
    """The counter store cannot be asked now; the message says why."""


class UsageLog(Protocol):
    """The durable log of finished requests."""

    def append(self, event: UsageEvent) -> None:
        """Take one event; durable within the fsync interval. Never waits and never raises: an event that cannot be kept is counted and
        alarmed."""
        ...
