"""When a short request that gets no first token is sent to a second backend as well. Pure: times in, a delay and a yes or no out.

Most late first tokens of short prompts are bad luck of one engine: a long prompt before it, a pause. A hedge on another backend, sent after
the time within which 19 of 20 requests have their first token, adds little more than 5 % of such requests if it is always sent (Dean and
Barroso, The Tail at Scale, 2013), and at most 2 % of them here. When every engine is slow, no hedge may be sent, or all would become
slower.
"""

from collections import deque
from typing import Final

SHARE: Final = 0.02
"""Hedges that one request earns (reliability research, 2.1)."""
SAVED: Final = 2.0
"""Hedges that can be saved up."""
QUANTILE: Final = 0.95
"""The delay is this quantile of the times to first token."""
KEPT_TIMES: Final = 256
"""Times to first token that are kept: a minute or so of a busy pool."""
ENOUGH: Final = 40
"""Times needed before there is a delay: two of 40 are beyond the quantile."""
EVERY: Final = 16
"""New times after which the delay is computed again."""


class Hedge:
    """The hedging delay and budget of one pool, as one process sees it.

    Args:
        max_prompt_tokens: uncached tokens of a request that may be sent twice.
        processes: that share what can be saved up; each earns by its own requests, and can save one hedge in any case.
    """

    __slots__ = ("_most_saved", "_new", "_saved", "_times", "delay_s", "max_prompt_tokens")

    def __init__(self, max_prompt_tokens: int, processes: int = 1) -> None:
        self._most_saved = max(1.0, SAVED / processes)
        self.max_prompt_tokens = max_prompt_tokens
        self.delay_s: float | None = None
        """Seconds without a first token after which a request is sent to a second backend; None while too few times are known."""
        self._times: deque[float] = deque(maxlen=KEPT_TIMES)
        self._new = 0
        self._saved = 1.0 / processes

    def request(self) -> None:
        """Count a request that may be sent twice: it earns a share of a hedge."""
        self._saved = min(self._most_saved, self._saved + SHARE)

    def began(self, after_s: float) -> None:
        """Take the time to first token of such a request, from either backend: seconds since it was sent to the first one."""
        self._times.append(after_s)
        self._new += 1
        if len(self._times) >= ENOUGH and (self._new >= EVERY or self.delay_s is None):
            self._new = 0
            times = sorted(self._times)
            self.delay_s = times[int(QUANTILE * (len(times) - 1))]

    def spend(self) -> bool:
        """Whether a request may be sent to a second backend now; True spends a hedge."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
