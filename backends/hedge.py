"""When a short request that gets no first token is sent to a second backend as well. Pure: times in, a delay and a yes or no out.

Most late first tokens of short prompts are bad luck of one engine: a long prompt before it, a pause. A second try elsewhere after the time
within which 19 of 20 have begun costs little more than 5 % of such requests if it always happens (Dean and Barroso, The Tail at Scale,
2013), and here at most 2 % of them; when everything is slow, it must not happen at all, or it would make everything slower.
"""

from collections import deque
from typing import Final

SHARE: Final = 0.02
"""Hedges that one request earns (reliability research, 2.1)."""
SAVED: Final = 2.0
"""That can be saved up."""
QUANTILE: Final = 0.95
KEPT: Final = 256
"""First-token times: a minute or so of a busy pool."""
ENOUGH: Final = 40
"""Of them, before there is a delay: two of 40 are beyond the quantile."""
EVERY: Final = 16
"""New ones, until the delay is worked out anew."""


class Hedge:
    """Of one pool, as one process sees it.

    Args:
        max_prompt_tokens: uncached tokens of a request that may be sent twice.
    """

    __slots__ = ("_new", "_saved", "_times", "delay_s", "max_prompt_tokens")

    def __init__(self, max_prompt_tokens: int) -> None:
        self.max_prompt_tokens = max_prompt_tokens
        self.delay_s: float | None = None
        """Seconds without a first token after which a request is sent to a second backend; None while too few were seen."""
        self._times: deque[float] = deque(maxlen=KEPT)
        self._new = 0
        self._saved = 1.0

    def request(self) -> None:
        """A request that may be sent twice goes out."""
        self._saved = min(SAVED, self._saved + SHARE)

    def began(self, after_s: float) -> None:
        """The first token of one came, from either backend: seconds since it was sent to the first."""
        self._times.append(after_s)
        self._new += 1
        if len(self._times) >= ENOUGH and (self._new >= EVERY or self.delay_s is None):
            self._new = 0
            times = sorted(self._times)
            self.delay_s = times[int(QUANTILE * (len(times) - 1))]

    def spend(self) -> bool:
        """Whether one may be sent to a second backend now; it is counted then."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
