"""A pool that may have no engine while nobody asks for it (`scale.to_zero`): the requests that find none are held until one has started.

`Waking` keeps, for one pool in one worker, since when it is being woken, how long that took the last times, and what may be held. The
queue of the pool does the holding: its order, deadlines and heartbeats are those of every wait. What cannot be held is refused with the
time after which an engine is expected.
"""

from collections import deque
from typing import Final

from domain.clock import Clock, Rng
from domain.faults import Fault
from gateway.queue import refusals
from routing.fair_queue import QueueBounds
from routing.scaling import ToZeroSettings

REMEMBERED: Final = 3
"""Wakes whose longest is expected of the next."""
DEMAND_S: Final = 60.0
"""Time after a request for a sleeping pool in which it counts as wanted: some scrapes of an autoscaler."""
OVERDUE_SHARE: Final = 0.1
"""Part of the expected time that an engine which is overdue is taken to need still."""


class Waking:
    """The waking of one pool.

    Args:
        settings: what may be held, and how long.
        bounds: this worker's part of what may be held.
    """

    __slots__ = ("_asked_at", "_clock", "_rng", "_since", "_took", "bounds", "wait_s")

    def __init__(self, settings: ToZeroSettings, bounds: QueueBounds, clock: Clock, rng: Rng) -> None:
        self.bounds: Final = bounds
        self.wait_s: Final = settings.wait_s
        self._clock = clock
        self._rng = rng
        self._took: deque[float] = deque((settings.cold_start_s,), maxlen=REMEMBERED)
        self._since: float | None = None
        self._asked_at: float | None = None

    def asked(self) -> None:
        """A request has found no engine."""
        self._asked_at = self._clock()
        if self._since is None:
            self._since = self._asked_at

    def look(self, now: float, *, up: bool) -> None:
        """Take note of the pool: an engine that is up ends the waking, and an hour in which nobody asked again forgets it."""
        if self._since is None:
            return
        if up:
            self._took.append(now - self._since)
        elif self._asked_at is not None and now - self._asked_at < max(3600.0, 2 * self.expected_s):
            return
        self._since = None

    @property
    def expected_s(self) -> float:
        """How long an engine is taken to need from the first request on, in seconds: the longest of the last wakes."""
        return max(self._took)

    def left_s(self) -> float:
        """Seconds until an engine is expected."""
        expected = self.expected_s
        gone_s = 0.0 if self._since is None else self._clock() - self._since
        return max(expected - gone_s, OVERDUE_SHARE * expected)

    @property
    def wanted(self) -> bool:
        """Whether a request has found no engine in the last minute."""
        return self._asked_at is not None and self._clock() - self._asked_at < DEMAND_S

    def refusal(self, bound: str | None, may_s: float) -> Fault | None:
        """Why a request is not held; None where it is.

        Args:
            bound: the bound that is reached (`FairQueue.refused`); None where there is room.
            may_s: how long it may wait, in seconds.
        """
        left_s = self.left_s()
        if bound is not None:
            return refusals.asleep(f"{refusals.BOUNDS[bound]} already", left_s, self._rng.random(), bound)
        if left_s > may_s:
            said = f"The engines of this model are starting, which takes longer than the {may_s:g} s that this request may wait"
            return refusals.asleep(said, left_s, self._rng.random(), refusals.TOO_LONG)
        return None

    def overdue(self, may_s: float) -> Fault:
        """The fault of a request that was held as long as it may be."""
        said = f"No engine of this model has started within the {may_s:g} s that this request may wait"
        return refusals.asleep(said, self.left_s(), self._rng.random(), refusals.TIMED_OUT)
