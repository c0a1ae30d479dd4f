"""How fast a pool works off what waits for it, and how much of that is left for whom. Pure: the time is handed in.

Ranks are served in order, so a request waits for what is before it now and for what comes into higher ranks meanwhile. Where C is the
pace of the pool and a what higher ranks bring, both in tokens per second, W tokens before it are done after W / (C - a): the wait in a
queue with priorities whose work is a fluid (Kleinrock, "Queueing Systems", vol. 2, 3.4). Where they bring all that the pool can do, what
`tenancy.fairness` keeps for lower ranks is what it waits for.
"""

from math import exp
from typing import Final

from tenancy.fairness import RANKS, Ahead

TAU_S: Final = 15.0
"""Seconds after which a measurement counts for a third: several requests long, and short against a change of load."""
MANY: Final = 128
"""Requests let through after which it does as well, so that a pool that serves many a second is known sooner. The error of what so many
say is a tenth or so."""
ENOUGH: Final = 4
"""Requests let through before anybody is told a rate: fewer say more about themselves than about the pool."""
GRAIN: Final = 2
"""Requests let through, in whose time no prediction is worth anything."""
FORGOTTEN_S: Final = 60.0
"""After a pause this long what was measured before it is not believed any more: the fleet may be another one."""


class DrainRate:
    """Time in which nobody waits, or no backend is there, does not count: what is let through then says nothing of the pool's pace.

    What comes is counted in the same time, without the request that begins it: of arrivals at a pace of their own that is no
    more in busy times than in others.
    """

    __slots__ = ("_came", "_count", "_last", "_passed", "_paused_at", "_seconds", "_since", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._came = [0.0] * RANKS
        self._passed = 0
        self._count = 0.0
        self._since: float | None = None
        self._paused_at = 0.0
        self._last = 0.0

    def busy(self, now: float) -> None:
        """Somebody waits, from now on if nobody did before."""
        if self._since is None:
            self._since = self._last = now
            if now - self._paused_at > FORGOTTEN_S:
                self._passed, self._tokens, self._seconds, self._count = 0, 0.0, 0.0, 0.0
                self._came = [0.0] * RANKS

    def idle(self, now: float) -> None:
        """Nobody waits any more, or nobody is there to be waited for."""
        if self._since is not None:
            self._advance(now)
            self._since, self._paused_at = None, now

    def came(self, rank: int, tokens: float, now: float) -> None:
        """One more waits."""
        if self._since is not None:
            self._advance(now)
            self._came[rank] += tokens

    def left(self, rank: int, tokens: float) -> None:
        """One that waited went unserved, so nobody has to wait for it any more."""
        self._came[rank] = max(0.0, self._came[rank] - tokens)

    def passed(self, tokens: float, now: float) -> None:
        """One that waited was let through."""
        self._advance(now)
        self._last = now
        self._fade(1.0 - 1.0 / MANY)
        self._tokens += tokens
        self._passed += 1
        self._count += 1.0

    def per_second(self, now: float) -> float:
        """Tokens per second; 0 while it is not known, and falling while somebody waits and nobody is let through."""
        self._advance(now)
        return self._tokens / self._seconds if self._passed >= ENOUGH and self._seconds else 0.0

    def grain_s(self) -> float:
        """What waits differ by in any case: the time in which a few are let through; 0 while nobody knows."""
        return GRAIN * self._seconds / self._count if self._passed >= ENOUGH and self._count else 0.0

    def wait_s(self, rank: int, ahead: Ahead, now: float, longest_s: float) -> float:
        """Seconds until what is before a request of this rank has been worked off. At least as long as nobody was let through until now,
        which is all that is known at first: a stall of unknown cause is as likely to last as long again as not.

        Args:
            longest_s: what is told instead of more.
        """
        pace, found = self.per_second(now), 0.0
        if pace:
            free = pace - sum(self._came[:rank]) / self._seconds
            found = ahead.until / pace
            if free > 0.0:
                found = min(found, (ahead.above + ahead.own + ahead.below) / free)
        stalled = now - self._last if self._since is not None else 0.0
        return min(max(found, stalled), longest_s)

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
        self._came = [fade * one for one in self._came]
