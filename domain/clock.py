"""Time and chance as arguments: the only way deciders learn what time it is or what the dice say.

The shell (`gateway/wiring.py`) hands in the real ones; tests hand in fakes that never sleep.
"""

from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]
"""Monotonic seconds from an arbitrary origin; only differences mean anything."""

WallClock = Callable[[], float]
"""Seconds since the Unix epoch; for what leaves the process (keys' expiry, Records), never for durations."""


class Rng(Protocol):
    """The part of `random.Random` that deciders may use."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """An integer in [0, stop)."""
        ...
