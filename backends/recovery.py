"""Slow start of a pool after an outage of all its backends. Pure: tokens sent, whether a backend is up, and the time in; whether one more
request may be sent out.

All callers that waited or were refused during the outage come at once, to engines whose caches are empty. So the rate of dispatch starts at
a tenth of the pool's rate before, in prompt tokens per second, and doubles every two seconds while prompts are computed in time
(reliability research, 2.4). Requests that are held back wait in the pool's queue like all others without capacity. The concurrency limits
of engines (`routing.room`) apply as well: they bound the requests on an engine, this module bounds how fast they arrive while the limits of
the new processes are not known yet.
"""

from math import exp, inf
from typing import Final

START: Final = 0.1
"""Share of the last good rate at which dispatch starts."""
DOUBLES_S: Final = 2.0
"""Seconds in which the rate doubles."""
LONGEST_S: Final = 30.0
"""Longest slow start, however late prompts are: by then the limits of engines have adapted (requirement R51: steady within 30 s)."""
OUTAGE_S: Final = 1.0
"""Shortest time without any backend up that counts as an outage; in less no crowd gathers."""
LATE_S: Final = 2.0
"""The rate does not grow while prompts have this many seconds of computing before them."""
TAU_S: Final = 10.0
"""Time constant of the average rate: a rate of this long ago counts for a third."""
BURST_S: Final = 0.5
"""The tokens of this many seconds can be saved up and sent at once."""
LEAST: Final = 100.0
"""Least value of the last good rate, in tokens per second: a pool that was idle before must be able to start."""


class Recovery:
    """The slow start of one pool, as one process sees it. Times are monotonic seconds."""

    __slots__ = ("_at", "_begun_at", "_level", "_level_sent", "_looked_at", "_looked_sent", "_out_since", "good", "rate", "sent_tokens")

    def __init__(self) -> None:
        self.good = 0.0
        """The last good rate: tokens per second sent lately while a backend was up."""
        self.sent_tokens = 0.0
        """Tokens to compute of all requests sent so far: the sender of a request adds to it."""
        self._level_sent = 0.0
        """Value of `sent_tokens` when `_level` was right."""
        self._looked_sent = 0.0
        """Value of `sent_tokens` at the last `look`."""
        self._looked_at: float | None = None
        self._out_since: float | None = None
        self._begun_at: float | None = None
        """When the pool came back; None while requests are not held back."""
        self.rate = inf
        """Tokens per second that may be sent now; infinite while requests are not held back."""
        self._level = 0.0
        self._at = 0.0

    def must_wait(self, now: float) -> bool:
        """Whether the next request has to wait."""
        if self.rate == inf:
            return False
        self._level += self._level_sent - self.sent_tokens
        self._level_sent = self.sent_tokens
        self._level = min(self._level + (now - self._at) * self.rate, BURST_S * self.rate)
        self._at = now
        return self._level <= 0.0

    def look(self, up: bool, queued_s: float, now: float) -> None:
        """Update the rate; to be called some times a second.

        Args:
            up: whether any backend of the pool is up.
            queued_s: seconds of computing that a prompt has before it, on the backend where that is least.
        """
        before = self._looked_at
        self._looked_at = now
        passed = 0.0 if before is None else now - before
        sent = self.sent_tokens - self._looked_sent
        self._looked_sent = self.sent_tokens
        if not up:
            self._out_since = now if self._out_since is None else self._out_since
            self._end()
            return
        if self._out_since is not None:
            if now - self._out_since >= OUTAGE_S and self.good:
                self._begun_at = self._at = now
                self.rate = START * max(LEAST, self.good)
                self._level = BURST_S * self.rate
                self._level_sent = self.sent_tokens
            self._out_since = None
            return
        if self._begun_at is None:
            if passed:
                weight = 1.0 - exp(-passed / TAU_S)
                self.good += weight * (sent / passed - self.good)
            return
        if queued_s <= LATE_S:
            self.rate *= 2 ** (passed / DOUBLES_S)
        if self.rate >= max(LEAST, self.good) or now - self._begun_at >= LONGEST_S:
            self._end()

    def _end(self) -> None:
        self._begun_at = None
        self.rate = inf
