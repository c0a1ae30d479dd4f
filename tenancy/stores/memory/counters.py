"""Counters of one process: the reference implementation, and their clock. `tenancy.quota` says what bounds their memory.

The state of a rate limit is a moment in the future, and a calendar limit counts in its period: both need a clock that nobody sets
(`SteadyWall`).
"""

import time
from collections.abc import Sequence
from typing import Final

from domain.clock import Clock, WallClock
from tenancy.hold import Admission, Beat, Hold, LimitUsage
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.quota import Quota
from tenancy.seeds import Seed

MAX_CORRECTION: Final = 0.001
"""How fast the time of `SteadyWall` moves forward to the machine's clock, as a share of the time that has passed: far above the error of a
clock's crystal (1e-4), and far below what a rate limit would notice."""


def up_time() -> float:
    """Seconds since the machine started, sleep included: a machine that slept for a night is in the next day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyWall:
    """A `WallClock` that nobody can set while the process runs: it takes the machine's clock once, and counts on from there.

    A clock that is set forward would give every rate its whole burst again, and begin a day or a month of limits too early, so that the
    difference is only made up for by `MAX_CORRECTION` of the time that passes. One that is set back would make every rate wait: it is not
    followed, and days begin early by as much until the process restarts. Readings never decrease.

    Args:
        clock: counts seconds, sleep of the machine included.
    """

    __slots__ = ("_ahead_s", "_clock", "_read_at", "_wall")

    def __init__(self, wall: WallClock, clock: Clock) -> None:
        self._wall = wall
        self._clock = clock
        self._read_at = clock()
        self._ahead_s = wall() - self._read_at

    def __call__(self) -> float:
        """Seconds since the Unix epoch."""
        now = self._clock()
        ahead_s = self._ahead_s
        off_s = self._wall() - now - ahead_s
        if off_s > 0.0:
            most_s = (now - self._read_at) * MAX_CORRECTION
            ahead_s = self._ahead_s = ahead_s + (off_s if off_s < most_s else most_s)
        self._read_at = now
        return ahead_s + now


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
