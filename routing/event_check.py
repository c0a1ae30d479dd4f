"""Whether an engine's events tell of the prompts that were sent to it, found out by looking for those prompts afterwards.

Some models tell few events or none (sliding windows, routers no. 26), and events under another salt, template or tokenizer are about
blocks that no prompt of ours has (no. 12). Either way the index says zero for ever and nothing fails. So a while after a long
prompt was answered the index is asked for it; after 50 of them, fewer than half of which were there, this says why the events
are of no use, until they are again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

PROMPTS: Final = 50
LONG: Final = 2
"""Blocks from which on a prompt counts: engines store whole blocks only."""
LAG_S: Final = 5.0
"""From its first token until a prompt is looked for; events come within 0.1 s, a replay of missing ones within a few seconds."""
MAX_DUE: Final = 64
"""Prompts waiting to be looked for; others are not."""


class EventCheck:
    """Of one backend's life that is taken to tell events."""

    __slots__ = ("_due", "_found", "_results", "reason")

    def __init__(self) -> None:
        self._due: deque[tuple[float, int]] = deque()
        self._results: deque[bool] = deque(maxlen=PROMPTS)
        self._found = 0
        self.reason = ""
        """Why its events are of no use, in words; empty when they are, or when that is not known yet."""

    def answered(self, chain: Sequence[int], now: float) -> None:
        """It has begun to answer the prompt with this chain."""
        if len(chain) >= LONG and len(self._due) < MAX_DUE:
            self._due.append((now + LAG_S, chain[0]))

    def due(self, now: float) -> list[int]:
        """Blocks to ask the index for now (`PrefixIndex.told`); the answers go to `found`."""
        out = []
        while self._due and self._due[0][0] <= now:
            out.append(self._due.popleft()[1])
        return out

    def found(self, held: bool, told: int) -> None:
        """Whether the backend's events tell of one of those.

        Args:
            told: blocks that its events told of as stored, ever.
        """
        if len(self._results) == PROMPTS:
            self._found -= self._results[0]
        self._results.append(held)
        self._found += held
        if len(self._results) < PROMPTS or self._found * 2 >= PROMPTS:
            self.reason = ""
        elif not told:
            self.reason = f"no event tells of a block, after {PROMPTS} prompts of {LONG} blocks and more"
        else:
            self.reason = (
                f"its events tell of other blocks than those of {PROMPTS - self._found} of the last {PROMPTS} prompts sent there: "
                "tokenizer, chat template, adapter or salt differ"
            )
