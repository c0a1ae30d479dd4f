"""The calendar's time for counters of this process: never goes back, whoever sets the machine's clock.

A rate's state is a moment in the future. With a clock that is set back an hour, everybody who had used a rate up would wait that
hour; so time goes on at the pace of the monotonic clock instead, and days begin early by as much until the process is restarted.
"""

from domain.clock import Clock, WallClock


class SteadyWall:
    """A `WallClock` of which every reading is at least the one before. Follows the machine's clock forward."""

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
