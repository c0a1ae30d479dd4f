"""Whether an engine's KV events report the prompts that were sent to it, checked by looking for those prompts in the index afterwards.

Some models publish few events or none (sliding windows, routers no. 26), and events under another salt, template or tokenizer are about
blocks that no prompt of ours has (no. 12). Either way the index finds nothing and nothing fails. So a while after a long prompt was
answered, the index is asked for its first block. When fewer than half of the last 50 were there, `reason` says why the events are
useless, until at least half are there again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

PROMPTS: Final = 50
"""Prompts over which events are judged."""
LONG: Final = 2
"""Blocks that a prompt must have to be checked: engines store whole blocks only."""
LAG_S: Final = 5.0
"""Seconds from a prompt's first token until it is looked for; events come within 0.1 s, a replay of missing ones within a few seconds."""
MAX_DUE: Final = 64
"""Prompts waiting to be looked for; more are not checked."""


class EventCheck:
    """The check of one backend that is configured to publish events."""

    __slots__ = ("_due", "_found", "_results", "reason")

    def __init__(self) -> None:
        self._due: deque[tuple[float, int]] = deque()
        self._results: deque[bool] = deque(maxlen=PROMPTS)
        self._found = 0
        self.reason = ""
        """Why the backend's events are useless, for an operator; empty when they are useful, or when that is not known yet."""

    def answered(self, chain: Sequence[int], now: float) -> None:
        """The backend has sent the first token for the prompt with this chain: check it after `LAG_S`."""
        if len(chain) >= LONG and len(self._due) < MAX_DUE:
            self._due.append((now + LAG_S, chain[0]))

    def due(self, now: float) -> list[int]:
        """Blocks to look for in the index now (`PrefixIndex.told`); each result goes to `found`."""
        out = []
        while self._due and self._due[0][0] <= now:
            out.append(self._due.popleft()[1])
        return out

    def found(self, held: bool, told: int) -> None:
        """Record the result for one block of `due`.

        Args:
            held: whether the backend's events report the block as stored.
            told: blocks that its events have reported as stored since its start.
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
