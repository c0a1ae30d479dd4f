"""How fast a pool takes up its work again after nobody in it was up. Pure: what was sent, who is up and the time in, may one more go out.

Everybody who waited or was refused meanwhile comes at once, to engines whose caches are empty. So what is sent starts at a tenth of what
the pool took before, in prompt tokens per second, and doubles every two seconds while prompts are computed in time (reliability
research, 2.4). What is held back waits in the line like anything that finds no room. Limits of engines (`routing.room`) hold beside it:
they bound what is on an engine, this bounds how fast it gets there while nobody knows yet what the new process bears.
"""

from math import exp, inf
from typing import Final

START: Final = 0.1
"""Of the last good rate."""
DOUBLES_S: Final = 2.0
LONGEST_S: Final = 30.0
"""However late prompts are: after so long the limits of engines have learned what they need (requirement R51: steady within 30 s)."""
OUTAGE_S: Final = 1.0
"""Nobody was up for at least so long; less gathers no crowd."""
LATE_S: Final = 2.0
"""Prompts are late that wait for so much computing before them."""
TAU_S: Final = 10.0
"""A rate of so long ago counts for a third."""
BURST_S: Final = 0.5
"""What was not used in so long may go at once."""
LEAST: Final = 100.0
"""Tokens per second that the last good rate is taken for at least: a pool that was idle before is not kept from beginning."""


class Recovery:
    """One pool, as one process sees it. Times are monotonic seconds."""

    __slots__ = ("_at", "_begun_at", "_level", "_looked_at", "_out_since", "_rate", "_sent", "good")

    def __init__(self) -> None:
        self.good = 0.0
        """Tokens per second that were sent lately while somebody was up."""
        self._sent = 0.0
        self._looked_at: float | None = None
        self._out_since: float | None = None
        self._begun_at: float | None = None
        """When the pool came back; None while nothing is held back."""
        self._rate = inf
        self._level = 0.0
        self._at = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second that may go out now; infinite while nothing is held back."""
        return self._rate

    def sent(self, tokens: float) -> None:
        """One more goes out, with so many tokens to compute."""
        self._sent += tokens
        self._level -= tokens

    def held(self, now: float) -> bool:
        """Whether one more has to wait."""
        if self._rate == inf:
            return False
        self._level = min(self._level + (now - self._at) * self._rate, BURST_S * self._rate)
        self._at = now
        return self._level <= 0.0

    def look(self, up: bool, queued_s: float, now: float) -> None:
        """To be called some times a second.

        Args:
            up: whether anybody in the pool is.
            queued_s: seconds of computing that a prompt has before it where that is least.
        """
        before, self._looked_at = self._looked_at, now
        passed, sent, self._sent = (0.0 if before is None else now - before), self._sent, 0.0
        if not up:
            self._out_since = now if self._out_since is None else self._out_since
            self._end()
            return
        if self._out_since is not None:
            if now - self._out_since >= OUTAGE_S and self.good:
                self._begun_at = self._at = now
                self._rate = START * max(LEAST, self.good)
                self._level = BURST_S * self._rate
            self._out_since = None
            return
        if self._begun_at is None:
            if passed:
                weight = 1.0 - exp(-passed / TAU_S)
                self.good += weight * (sent / passed - self.good)
            return
        if queued_s <= LATE_S:
            self._rate *= 2 ** (passed / DOUBLES_S)
        if self._rate >= max(LEAST, self.good) or now - self._begun_at >= LONGEST_S:
            self._end()

    def _end(self) -> None:
        self._begun_at, self._rate = None, inf
