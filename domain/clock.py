"""Time and randomness as arguments: deciders read the time and draw random numbers only through these types.

The shell (`gateway/wiring/requests.py`) hands in the real ones; tests hand in fakes that never sleep.
"""

from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]
"""Monotonic seconds from an arbitrary origin; only differences mean anything."""

WallClock = Callable[[], float]
"""Seconds since the Unix epoch; for values that leave the process (keys' expiry, Records), never for durations."""


class Rng(Protocol):
    """The part of `random.Random` that deciders may use."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """An integer in [0, stop)."""
        ...
