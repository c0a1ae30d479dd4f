"""How fast one engine's answers come, a token of each: from its own counter where it tells it, else from answers that ended. Pure.

gap = sequences that decode, summed over time / tokens made in that time
"""

from math import inf
from typing import Final

TOKENS: Final = 10
"""At least, or answers, for one measure."""
MEASURED_S: Final = 0.3
"""Three readings of an engine at the usual pace."""
WEIGHT: Final = 0.3
"""Of one more measure."""
FORGET: Final = 1.00005
"""The best is believed so much less with each measure, nearly double in an hour: an engine may have become slower for good."""


class Pace:
    """One engine's. `ended` only adds up; `heard` and `by_answers` say whether there is a new measure."""

    __slots__ = ("_answers", "_decoded", "_gaps", "_looks", "_since", "best_s", "gap_s")

    def __init__(self) -> None:
        self.gap_s = 0.0
        """Seconds between two tokens of an answer lately; 0 while unknown."""
        self.best_s = inf
        """The least it was."""
        self._gaps, self._answers = 0.0, 0
        self._since: tuple[int, float] | None = None
        self._decoded, self._looks = 0.0, 0

    def ended(self, gap_s: float) -> None:
        """A whole answer came, a token each `gap_s` seconds."""
        self._gaps += gap_s
        self._answers += 1

    def heard(self, decoding: float, generated: int, now: float) -> bool:
        """The engine's counter stands at `generated` while so many sequences decode."""
        self._gaps, self._answers = 0.0, 0
        self._decoded += decoding
        self._looks += 1
        new = False
        if self._since is not None:
            made, lasted = generated - self._since[0], now - self._since[1]
            if 0 <= made < TOKENS or lasted < MEASURED_S:
                return False
            new = made > 0  # else it counts from a new start
            if new:
                self._take(self._decoded / self._looks * lasted / made)
        self._since = (generated, now)
        self._decoded, self._looks = 0.0, 0
        return new

    def by_answers(self) -> bool:
        """Measure by those that ended, if they are enough."""
        if self._answers < TOKENS:
            return False
        self._take(self._gaps / self._answers)
        self._gaps, self._answers = 0.0, 0
        return True

    def _take(self, gap_s: float) -> None:
        self.gap_s += (WEIGHT if self.gap_s else 1.0) * (gap_s - self.gap_s)
        self.best_s = min(self.best_s * FORGET, gap_s)
