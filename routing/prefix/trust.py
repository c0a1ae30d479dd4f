"""How far to trust the prefix index for a backend, by what its engine answered afterwards.

`Trust` compares cached tokens that the engine reports with those that were predicted. A wrong salt, block size or hash makes the index
predict zero everywhere, or too much, and nothing fails (routers no. 12). So every answer's `cached_tokens` is compared with the prediction
that the request was routed by: the backend's matches are multiplied by the share that came true, and an alarm is raised when the median
prediction is wrong in either direction.

`EventCheck` says whether an engine's KV events report the prompts that were sent to it. Some models publish few events or none (sliding
windows, routers no. 26), and events under another salt, template or tokenizer are about blocks that no prompt of ours has (no. 12). Either
way the index has no such block and nothing fails. So a while after a long prompt was answered, the index is asked for its first block. When
fewer than half of the last 50 were there, `reason` says why the events are useless, until at least half are there again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

TRUST_RATE: Final = 0.05
"""Weight of one more answer: the last 14 make half of the mean."""
PRIOR_TOKENS: Final = 2_048.0
"""A new backend starts as if one prompt of this length had been predicted correctly."""
SLACK_TOKENS: Final = 64
"""A block: engines count in blocks of their own and always compute the last token, so less than this is no error."""
MEDIAN_WINDOW: Final = 200
"""Answers over which the alarm is judged."""
MAX_MEDIAN_ERROR: Final = 0.2
"""The alarm is raised when the median relative error over the window is larger."""
_ALARM_OVER: Final = 0.4
"""The alarm ends when at most this share of the window's answers has a larger error: less than half, so that it does not flap."""


class Trust:
    """The trust in one backend, from its start until it is forgotten."""

    __slots__ = ("_actual", "_errors", "_predicted", "_wrong", "alarm", "share")

    def __init__(self) -> None:
        self._predicted = self._actual = PRIOR_TOKENS
        self._errors: deque[float] = deque(maxlen=MEDIAN_WINDOW)
        self._wrong = 0
        self.alarm = False
        """Whether the median error is above 20 % over the last 200 answers that had something cached or predicted."""
        self.share = 1.0
        """Factor for the backend's matches, 0 to 1."""

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
        off, most = (actual - predicted, actual) if actual > predicted else (predicted - actual, predicted)
        error = 0.0 if off <= SLACK_TOKENS else off / most
        if len(self._errors) == MEDIAN_WINDOW:
            self._wrong -= self._errors[0] > MAX_MEDIAN_ERROR
        self._errors.append(error)
        self._wrong += error > MAX_MEDIAN_ERROR
        if len(self._errors) == MEDIAN_WINDOW:
            self.alarm = self._wrong * 2 > MEDIAN_WINDOW or (self.alarm and self._wrong > MEDIAN_WINDOW * _ALARM_OVER)
        if predicted > 0:
            # tokens, not ratios, are averaged: a long prompt's prediction weighs more than a short one's
            came_true = predicted if error == 0.0 or actual > predicted else actual
            self._predicted += TRUST_RATE * (predicted - self._predicted)
            self._actual += TRUST_RATE * (came_true - self._actual)
            self.share = 1.0 if self._actual >= self._predicted else self._actual / self._predicted


class Trusts:
    """One `Trust` for each backend id; bounded by the fleet."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, Trust] = {}

    def of(self, backend_id: str) -> Trust:
        """The backend's trust, created if there is none."""
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


CHECKED_PROMPTS: Final = 50
"""Prompts over which events are judged."""
MIN_CHECKED_BLOCKS: Final = 2
"""Blocks that a prompt must have to be checked: engines store whole blocks only."""
EVENT_LAG_S: Final = 5.0
"""Seconds from a prompt's first token until it is looked for; events come within 0.1 s, a replay of missing ones within a few seconds."""
MAX_DUE_CHECKS: Final = 64
"""Prompts waiting to be looked for; more are not checked."""


class EventCheck:
    """The check of one backend that is configured to publish events."""

    __slots__ = ("_due", "_found", "_results", "reason")

    def __init__(self) -> None:
        self._due: deque[tuple[float, int]] = deque()
        self._results: deque[bool] = deque(maxlen=CHECKED_PROMPTS)
        self._found = 0
        self.reason = ""
        """Why the backend's events are useless, for an operator; empty when they are useful, or when that is not known yet."""

    def answered(self, chain: Sequence[int], now: float) -> None:
        """The backend has sent the first token for the prompt with this chain: check it after `EVENT_LAG_S`."""
        if len(chain) >= MIN_CHECKED_BLOCKS and len(self._due) < MAX_DUE_CHECKS:
            self._due.append((now + EVENT_LAG_S, chain[0]))

    def due(self, now: float) -> list[int]:
        """Blocks to look for in the index now (`PrefixIndex.stored_by_events`); each result goes to `checked`."""
        out = []
        while self._due and self._due[0][0] <= now:
            out.append(self._due.popleft()[1])
        return out

    def checked(self, held: bool, told: int) -> None:
        """Record the result for one block of `due`.

        Args:
            held: whether the backend's events report the block as stored.
            told: blocks that its events have reported as stored since its start.
        """
        if len(self._results) == CHECKED_PROMPTS:
            self._found -= self._results[0]
        self._results.append(held)
        self._found += held
        if len(self._results) < CHECKED_PROMPTS or self._found * 2 >= CHECKED_PROMPTS:
            self.reason = ""
        elif not told:
            self.reason = f"no event tells of a block, after {CHECKED_PROMPTS} prompts of {MIN_CHECKED_BLOCKS} blocks and more"
        else:
            self.reason = (
                f"its events tell of other blocks than those of {CHECKED_PROMPTS - self._found} of the last {CHECKED_PROMPTS} prompts "
                "sent there: "
                "tokenizer, chat template, adapter or salt differ"
            )
