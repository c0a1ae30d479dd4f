"""How far to believe what the index says of a backend: what engines report as cached over what was predicted.

A wrong salt, block size or hash makes an index say zero everywhere, or too much, and nothing fails (routers no. 12). So every
answer's `cached_tokens` is compared with the prediction it was placed by: the share that came true weighs the backend's matches,
and an alarm says when the typical prediction is wrong in either direction.
"""

from collections import deque
from typing import Final

RATE: Final = 0.05
"""What one answer moves: the last 14 make half of it."""
PRIOR_TOKENS: Final = 2_048.0
"""A new backend is believed as if it had kept its word on one longish prompt."""
SLACK_TOKENS: Final = 64
"""A block: engines count in blocks of their own and always compute the last token, so less than this is no error."""
WINDOW: Final = 200
ERROR: Final = 0.2
"""An alarm when the median error over the window is larger; over when it is not in three of five answers."""
_ALARM_OVER: Final = 0.4


class Trust:
    """Of one backend's life."""

    __slots__ = ("_actual", "_errors", "_predicted", "_wrong", "alarm")

    def __init__(self) -> None:
        self._predicted = self._actual = PRIOR_TOKENS
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._wrong = 0
        self.alarm = False
        """Whether the median error is above 20 % over the last 200 answers that had something cached or predicted."""

    @property
    def share(self) -> float:
        """0 to 1: what to multiply a match with."""
        return min(1.0, self._actual / self._predicted)

    @property
    def median_error(self) -> float:
        """Over the last 200 answers; 0 when none told anything."""
        ordered = sorted(self._errors)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def observe(self, predicted: float, actual: float) -> None:
        """One answer. Nothing predicted and nothing cached tells nothing.

        Args:
            predicted: tokens that the index said the backend holds of this prompt, not weighed by trust.
            actual: `cached_tokens` as the engine reports it; not to be called where it reports none.
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
            # tokens, not ratios, are averaged: a long prompt's prediction is worth more than a short one's
            kept = predicted if error == 0.0 else min(actual, predicted)
            self._predicted += RATE * (predicted - self._predicted)
            self._actual += RATE * (kept - self._actual)


class Trusts:
    """One `Trust` for each backend id; bounded by the fleet."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, Trust] = {}

    def of(self, backend_id: str) -> Trust:
        """This backend's, new if there is none."""
        trust = self._by_id.get(backend_id)
        if trust is None:
            trust = self._by_id[backend_id] = Trust()
        return trust

    def share(self, backend_id: str) -> float:
        """What to multiply this backend's match with; 1 where nothing is known."""
        trust = self._by_id.get(backend_id)
        return 1.0 if trust is None else trust.share

    def forget(self, backend_id: str) -> None:
        """The backend is gone, or its process is another one."""
        self._by_id.pop(backend_id, None)
