"""The time between tokens of one engine's answers: from the engine's own token counter where it reports one, else from answers that ended.
Pure.

gap = sequences that decode, summed over time / tokens made in that time
"""

from math import inf
from typing import Final

TOKENS: Final = 10
"""Tokens, or answers, that one measurement needs at least."""
MEASURED_S: Final = 0.3
"""Shortest time of one measurement: three readings of an engine at the usual poll interval."""
WEIGHT: Final = 0.3
"""Weight of a new measurement in the moving average."""
FORGET: Final = 1.00005
"""Factor by which the best gap grows with each measurement, nearly double in an hour: an engine may have become slower for good."""


class Pace:
    """The time between tokens on one engine. `ended` only adds up; `heard` and `by_answers` return whether there is a new measurement."""

    __slots__ = ("_answers", "_decoded", "_gaps", "_looks", "_since", "best_s", "gap_s")

    def __init__(self) -> None:
        self.gap_s = 0.0
        """Seconds between two tokens of an answer lately; 0 while unknown."""
        self.best_s = inf
        """The least `gap_s` measured so far, slowly forgotten; infinite while unknown."""
        self._gaps = 0.0
        self._answers = 0
        self._since: tuple[int, float] | None = None
        self._decoded = 0.0
        self._looks = 0

    def ended(self, gap_s: float) -> None:
        """Add a complete answer whose tokens came `gap_s` seconds apart."""
        self._gaps += gap_s
        self._answers += 1

    def heard(self, decoding: float, generated: int, now: float) -> bool:
        """Take the engine's counter of generated tokens, and how many sequences decode; returns whether there is a new measurement."""
        self._gaps = 0.0
        self._answers = 0
        self._decoded += decoding
        self._looks += 1
        new = False
        if self._since is not None:
            tokens = generated - self._since[0]
            lasted = now - self._since[1]
            if 0 <= tokens < TOKENS or lasted < MEASURED_S:
                return False
            new = tokens > 0  # else the counter was reset: measure from here
            if new:
                self._take(self._decoded / self._looks * lasted / tokens)
        self._since = (generated, now)
        self._decoded = 0.0
        self._looks = 0
        return new

    def by_answers(self) -> bool:
        """Measure by the answers that ended, if there are enough; returns whether there is a new measurement."""
        if self._answers < TOKENS:
            return False
        self._take(self._gaps / self._answers)
        self._gaps = 0.0
        self._answers = 0
        return True

    def _take(self, gap_s: float) -> None:
        self.gap_s += (WEIGHT if self.gap_s else 1.0) * (gap_s - self.gap_s)
        self.best_s = min(self.best_s * FORGET, gap_s)
