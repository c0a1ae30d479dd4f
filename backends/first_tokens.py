"""What first tokens of one engine say: seconds per uncached token, and from that how many may be there. Pure.

    per token = sum ttft / sum (FIXED + uncached + before it)
    room = max(LEAST_TOKENS, QUEUE_S of them, PROMPTS usual prompts but at most QUEUE_MOST_S of them)

Usual is the prompt of a usual token: sum uncached^2 / sum uncached.
"""

from math import inf
from typing import Final

COUNT: Final = 10
"""At least, for one window."""
FIXED: Final = 256.0
"""Tokens whose prefill takes as long as a step without any: 170 to 260 on the machines of `routing.simulation.timing`."""
QUEUE_S: Final = 0.3
"""Of prefill may be there: the next step's prompts have to be, and those of the one after."""
PROMPTS: Final = 2.5
"""Fewer leave the engine without any when one has ended."""
QUEUE_MOST_S: Final = 0.8
LEAST_TOKENS: Final = 2048.0
"""Usual engines prefill so many in one step, or more."""
WEIGHT: Final = 0.3
"""Of one more window."""


class FirstTokens:
    """A window of them, and what earlier ones have taught. `add` only adds up."""

    __slots__ = ("_before", "_per_token", "_squares", "_uncached", "count", "room", "ttft", "usual")

    def __init__(self) -> None:
        self.room = inf
        """Uncached prompt tokens that the engine has use for; infinite while unknown."""
        self.usual = 0.0
        self._per_token = 0.0
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.ttft = 0.0
        """Their sum in this window, seconds."""
        self._before = self._uncached = self._squares = 0.0

    @property
    def enough(self) -> bool:
        """Whether this window can be judged."""
        return self.count >= COUNT

    def add(self, uncached: float, before: float, ttft_s: float) -> None:
        """One came; see `Limiter.began`."""
        self.count += 1
        self.ttft += ttft_s
        self._before += before
        self._uncached += uncached
        self._squares += uncached * uncached

    def units(self, of_all: float) -> float:
        """What the engine had to compute until then: theirs and everybody's before them, of which `of_all` is known here."""
        return FIXED * self.count + self._uncached + self._before / of_all

    def learn(self, of_all: float) -> None:
        """The window is over."""
        weight = WEIGHT if self._per_token else 1.0
        self._per_token += weight * (self.ttft / self.units(of_all) - self._per_token)
        if self._uncached:
            self.usual += weight * (self._squares / self._uncached - self.usual)
        if self._per_token > 0.0:
            tokens_s = 1.0 / self._per_token
            self.room = max(LEAST_TOKENS, QUEUE_S * tokens_s, min(PROMPTS * self.usual, QUEUE_MOST_S * tokens_s))
        self._clear()
