"""Counters of one process: the reference books, and a clock. What is bounded and how is said in `tenancy.books`."""

from collections.abc import Sequence

from domain.clock import WallClock
from tenancy.hold import Admission, Beat, Hold, LineState
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.quota import Quota
from tenancy.seeds import Seed


class MemoryCounters:
    """See `tenancy.ports.Counters`. Nothing here suspends.

    `clock` must not go backwards (a step back would make everyone wait as long); it is the calendar's clock too.
    """

    in_process = True

    def __init__(self, clock: WallClock, most_labels: int = MOST_LABELS) -> None:
        self._clock = clock
        self._quota = Quota(most_labels)

    @property
    def crowded(self) -> int:
        """See `ValkeyCounters.crowded`."""
        return self._quota.crowded

    async def admit(self, hold: Hold) -> Admission:
        """See the port."""
        return self._quota.admit(hold, round(self._clock() * 1e6))

    async def beat(self, beats: Sequence[Beat]) -> None:
        """See the port."""
        self._quota.beat(beats, round(self._clock() * 1e6))

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """See the port."""
        self._quota.settle(hold, actual, round(self._clock() * 1e6))

    async def look(self, group: Group) -> list[LineState]:
        """See the port."""
        return self._quota.look(group, round(self._clock() * 1e6))

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> list[int | None]:
        """See `tenancy.seeds.Tallies`."""
        return self._quota.seed(tag, seeds, round(self._clock() * 1e6))
