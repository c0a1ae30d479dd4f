"""Wall-clock time for counters of this process that never goes back, even when the machine's clock is set back.

The state of a rate limit is a moment in the future. If the clock went back an hour, every caller who had used up a rate would wait
that hour; so time goes on at the pace of the monotonic clock instead, and days begin early by as much until the process restarts.
"""

from domain.clock import Clock, WallClock


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
