"""How far to trust the prefix index for a backend: cached tokens that engines report, over cached tokens that were predicted.

A wrong salt, block size or hash makes the index predict zero everywhere, or too much, and nothing fails (routers no. 12). So every
answer's `cached_tokens` is compared with the prediction that the request was routed by: the backend's matches are multiplied by the
share that came true, and an alarm is raised when the median prediction is wrong in either direction.
"""

from collections import deque
from typing import Final

RATE: Final = 0.05
"""Weight of one more answer: the last 14 make half of the mean."""
PRIOR_TOKENS: Final = 2_048.0
"""A new backend starts as if one prompt of this length had been predicted correctly."""
SLACK_TOKENS: Final = 64
"""A block: engines count in blocks of their own and always compute the last token, so less than this is no error."""
WINDOW: Final = 200
"""Answers over which the alarm is judged."""
ERROR: Final = 0.2
"""The alarm is raised when the median relative error over the window is larger."""
_ALARM_OVER: Final = 0.4
"""The alarm ends when at most this share of the window's answers has a larger error: less than half, so that it does not flap."""


class Trust:
    """The trust in one backend, from its start until it is forgotten."""

    __slots__ = ("_actual", "_errors", "_predicted", "_wrong", "alarm")

    def __init__(self) -> None:
        self._predicted = self._actual = PRIOR_TOKENS
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._wrong = 0
        self.alarm = False
        """Whether the median error is above 20 % over the last 200 answers that had something cached or predicted."""

    @property
    def share(self) -> float:
        """Factor for the backend's matches, 0 to 1."""
        return min(1.0, self._actual / self._predicted)

    @property
    def median_error(self) -> float:
        """Median relative error over the last 200 answers that had something cached or predicted; 0 for none."""
        ordered = sorted(self._errors)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def observe(self, predicted: float, actual: float) -> None:
        """Learn from one answer. An answer with nothing predicted and nothing cached is ignored.

        Args:
            predicted: tokens of this prompt that the index said the backend holds, not multiplied by trust.
            actual: `cached_tokens` as the engine reports it; not to be called when the engine does not report it.
        """
        if predicted <= 0 and actual <= 0:
            return
        off = abs(actual - predicted)
        error = 0.0 if off <= SLACK_TOKENS else off / max(actual, predicted)
        if len(self._errors) == WINDOW:
            self._wrong -= self._errors[0] > ERROR
        self._errors.append(error)
        self._wrong += error > ERROR
        if len(self._errors) == WINDOW:
            self.alarm = self._wrong * 2 > WINDOW or (self.alarm and self._wrong > WINDOW * _ALARM_OVER)
        if predicted > 0:
            # tokens, not ratios, are averaged: a long prompt's prediction weighs more than a short one's
            came_true = predicted if error == 0.0 else min(actual, predicted)
            self._predicted += RATE * (predicted - self._predicted)
            self._actual += RATE * (came_true - self._actual)


class Trusts:
    """One `Trust` for each backend id; bounded by the fleet."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, Trust] = {}

    def of(self, backend_id: str) -> Trust:
        """This backend's trust, created if there is none."""
        trust = self._by_id.get(backend_id)
        if trust is None:
            trust = self._by_id[backend_id] = Trust()
        return trust

    def share(self, backend_id: str) -> float:
        """Factor for this backend's matches, 0 to 1; 1 when nothing is known."""
        trust = self._by_id.get(backend_id)
        return 1.0 if trust is None else trust.share

    def forget(self, backend_id: str) -> None:
        """Forget a backend that has left, or whose process was replaced."""
        self._by_id.pop(backend_id, None)
