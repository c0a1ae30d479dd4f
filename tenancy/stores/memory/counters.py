"""Counters of one process: the reference implementation, and their clock. `tenancy.quota` says what bounds their memory.

The state of a rate limit is a moment in the future. If the clock went back an hour, every caller who had used up a rate would wait
that hour; so time goes on at the pace of the monotonic clock instead, and days begin early by as much until the process restarts.
"""

from collections.abc import Sequence

from domain.clock import Clock, WallClock
from tenancy.hold import Admission, Beat, Hold, LimitUsage
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.quota import Quota
from tenancy.seeds import Seed


class SteadyWall:
    """A `WallClock` whose readings never decrease. It follows the machine's clock forward."""

    __slots__ = ("_ahead_s", "_clock", "_wall")

    def __init__(self, wall: WallClock, clock: Clock) -> None:
        self._wall = wall
        self._clock = clock
        self._ahead_s = wall() - clock()

    def __call__(self) -> float:
        """Seconds since the Unix epoch."""
        now = self._clock()
        ahead_s = self._wall() - now
        if ahead_s > self._ahead_s:
            self._ahead_s = ahead_s
        return self._ahead_s + now


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
