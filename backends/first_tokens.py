"""The prefill speed of one engine, measured by times to first token, and how many uncached prompt tokens the engine has use for. Pure.

    per token = sum ttft / sum (FIXED + uncached + before it)
    room = max(LEAST_TOKENS, QUEUE_S of prefill, PROMPTS usual prompts but at most QUEUE_MOST_S of prefill)

The usual prompt is the length-weighted mean: sum uncached^2 / sum uncached.
"""

from math import inf
from typing import Final

COUNT: Final = 10
"""First tokens that a window needs at least."""
FIXED: Final = 256.0
"""Tokens whose prefill takes as long as a step without any: 170 to 260 on the machines of `routing.simulation.timing`."""
QUEUE_S: Final = 0.3
"""Seconds of prefill that may lie on an engine: the prompts of its next step must be there, and those of the step after."""
PROMPTS: Final = 2.5
"""Usual prompts that may lie on an engine; with fewer it has none left when one has ended."""
QUEUE_MOST_S: Final = 0.8
"""Seconds of prefill that `PROMPTS` may come to."""
LEAST_TOKENS: Final = 2048.0
"""Tokens that may always lie on an engine: usual engines prefill this many in one step, or more."""
WEIGHT: Final = 0.3
"""Weight of a new window in the moving averages."""


class FirstTokens:
    """One window of first tokens, and the averages over earlier windows. `add` only adds up; `learn` closes the window."""

    __slots__ = ("_before", "_per_token", "_squares", "_uncached", "count", "room", "ttft", "usual")

    def __init__(self) -> None:
        self.room = inf
        """Uncached prompt tokens that the engine has use for; infinite while unknown."""
        self.usual = 0.0
        """Uncached tokens of the usual prompt."""
        self._per_token = 0.0
        """Seconds of prefill per uncached token; 0 while unknown."""
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.ttft = 0.0
        """Sum of the times to first token in this window, seconds."""
        self._before = self._uncached = self._squares = 0.0

    @property
    def enough(self) -> bool:
        """Whether this window can be judged."""
        return self.count >= COUNT

    def add(self, uncached: float, before: float, ttft_s: float) -> None:
        """Add a first token; arguments as of `Limiter.began`."""
        self.count += 1
        self.ttft += ttft_s
        self._before += before
        self._uncached += uncached
        self._squares += uncached * uncached

    def units(self, own_share: float) -> float:
        """Tokens that the engine had to compute before these first tokens: the requests' own, and those before them from all processes, of
        which this process knows the share `own_share`."""
        return FIXED * self.count + self._uncached + self._before / own_share

    def learn(self, own_share: float) -> None:
        """Close the window: update the averages and `room`, and begin a new window."""
        weight = WEIGHT if self._per_token else 1.0
        self._per_token += weight * (self.ttft / self.units(own_share) - self._per_token)
        if self._uncached:
            self.usual += weight * (self._squares / self._uncached - self.usual)
        if self._per_token > 0.0:
            tokens_s = 1.0 / self._per_token
            self.room = max(LEAST_TOKENS, QUEUE_S * tokens_s, min(PROMPTS * self.usual, QUEUE_MOST_S * tokens_s))
        self._clear()
