"""Counters of one process: the reference implementation, and a clock. `tenancy.quota` says what bounds their memory."""

from collections.abc import Sequence

from domain.clock import WallClock
from tenancy.hold import Admission, Beat, Hold, LimitUsage
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.quota import Quota
from tenancy.seeds import Seed


class MemoryCounters:
    """Counters in memory (`tenancy.ports.Counters`, `tenancy.seeds.Tallies`). No call suspends.

    `clock` must not go backwards (a step back would make every rate limit wait as long); it is the calendar's clock too.
    """

    in_process = True

    def __init__(self, clock: WallClock, most_labels: int = MOST_LABELS) -> None:
        self._clock = clock
        self._quota = Quota(most_labels)

    @property
    def crowded(self) -> int:
        return self._quota.crowded

    async def admit(self, hold: Hold) -> Admission:
        return self._quota.admit(hold, round(self._clock() * 1e6))

    async def beat(self, beats: Sequence[Beat]) -> None:
        self._quota.beat(beats, round(self._clock() * 1e6))

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        self._quota.settle(hold, actual, round(self._clock() * 1e6))

    async def look(self, group: Group) -> list[LimitUsage]:
        return self._quota.look(group, round(self._clock() * 1e6))

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> list[int | None]:
        return self._quota.seed(tag, seeds, round(self._clock() * 1e6))
