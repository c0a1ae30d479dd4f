"""The drain rate of a pool's queue, and the wait that follows from it for a request of a given rank. Pure: the time is handed in.

Ranks are served in order, so a request waits for the work ahead of it now and for the arrivals into higher ranks meanwhile. Where C is
the drain rate and a the arrival rate of higher ranks, both in tokens per second, W tokens ahead are done after W / (C - a): the wait in
a priority queue with fluid work (Kleinrock, "Queueing Systems", vol. 2, 3.4). Where higher ranks take the whole rate, the request waits
for the share that `tenancy.fair_queue` reserves for lower ranks.
"""

from math import exp
from typing import Final

from tenancy.fair_queue import RANKS, Ahead

TAU_S: Final = 15.0
"""Seconds after which a measurement counts for a third: several requests long, and short against a change of load."""
MANY: Final = 128
"""Dispatched requests after which a measurement counts for a third as well, so that the rate of a pool that serves many requests a second
is known sooner. The error of a rate from that many is about a tenth."""
ENOUGH: Final = 4
"""Dispatched requests before a rate is given: fewer say more about themselves than about the pool."""
GRAIN: Final = 2
"""The resolution of predictions: no prediction is exact to less than the time of this many dispatches."""
FORGOTTEN_S: Final = 60.0
"""Seconds of pause after which earlier measurements are dropped: the fleet may have changed."""


class DrainRate:
    """Measures dispatched and arriving tokens per second while requests wait and a backend is there; other times do not count, because
    dispatches then say nothing of the pool's capacity.

    Arrivals are counted in the same times, without the request that begins a busy time: arrivals at a rate of their own are no more
    frequent in busy times than in others.
    """

    __slots__ = ("_arrived", "_count", "_dispatched", "_last", "_paused_at", "_seconds", "_since", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        """Tokens of dispatched requests, decayed."""
        self._seconds = 0.0
        """Busy time, decayed."""
        self._arrived = [0.0] * RANKS
        """Tokens that arrived, by rank, decayed."""
        self._dispatched = 0
        """Requests dispatched since the last reset."""
        self._count = 0.0
        """Dispatched requests, decayed."""
        self._since: float | None = None
        """The time up to which the busy time is counted; None while idle."""
        self._paused_at = 0.0
        self._last = 0.0
        """The time of the last dispatch, or of the start of the busy time."""

    def busy(self, now: float) -> None:
        """Start to count: a request waits. No effect while counting already."""
        if self._since is None:
            self._since = self._last = now
            if now - self._paused_at > FORGOTTEN_S:
                self._dispatched = 0
                self._tokens = 0.0
                self._seconds = 0.0
                self._count = 0.0
                self._arrived = [0.0] * RANKS

    def idle(self, now: float) -> None:
        """Stop to count: no request waits, or no backend is up."""
        if self._since is not None:
            self._advance(now)
            self._since = None
            self._paused_at = now

    def joined(self, rank: int, tokens: float, now: float) -> None:
        """Count a request that joined the queue."""
        if self._since is not None:
            self._advance(now)
            self._arrived[rank] += tokens

    def left(self, rank: int, tokens: float) -> None:
        """Take back the arrival of a request that left the queue unserved: no other request has to wait for it."""
        self._arrived[rank] = max(0.0, self._arrived[rank] - tokens)

    def dispatched(self, tokens: float, now: float) -> None:
        """Count a request that left the queue for a backend."""
        self._advance(now)
        self._last = now
        self._fade(1.0 - 1.0 / MANY)
        self._tokens += tokens
        self._dispatched += 1
        self._count += 1.0

    def per_second(self, now: float) -> float:
        """Tokens per second; 0 while unknown, and falling while requests wait and none is dispatched."""
        self._advance(now)
        return self._tokens / self._seconds if self._dispatched >= ENOUGH and self._seconds else 0.0

    def grain_s(self) -> float:
        """The resolution of waits in seconds: the time of `GRAIN` dispatches; 0 while unknown."""
        return GRAIN * self._seconds / self._count if self._dispatched >= ENOUGH and self._count else 0.0

    def wait_s(self, rank: int, ahead: Ahead, now: float, longest_s: float) -> float:
        """Predicted seconds until the work ahead of a request of this rank is done. At least the time since the last dispatch, which is
        all that is known at first: a stall of unknown cause is as likely to last as long again as not.

        Args:
            longest_s: the upper bound of the prediction.
        """
        pace = self.per_second(now)
        wait_s = 0.0
        if pace:
            free = pace - sum(self._arrived[:rank]) / self._seconds
            wait_s = ahead.until / pace
            if free > 0.0:
                wait_s = min(wait_s, (ahead.above + ahead.own + ahead.below) / free)
        stalled = now - self._last if self._since is not None else 0.0
        return min(max(wait_s, stalled), longest_s)

    def _advance(self, now: float) -> None:
        if self._since is None or now <= self._since:
            return
        fade = exp((self._since - now) / TAU_S)
        self._fade(fade)
        self._seconds += TAU_S * (1.0 - fade)
        self._since = now

    def _fade(self, fade: float) -> None:
        self._tokens *= fade
        self._seconds *= fade
        self._count *= fade
        self._arrived = [fade * tokens for tokens in self._arrived]
