"""How much of what engines cache is used again, as one share for a pool: the cost of evicting cached prompts.

Source: each answer's `cached_tokens` over its prompt's tokens, both averaged with weights that fade by 1 % per answer. It begins at 0.
"""

from typing import Final

FADE: Final = 0.01
"""Weight of one more answer in the means."""
PRIOR_TOKENS: Final = 1024.0
"""Prompt tokens of the mean before any answer."""


class Reuse:
    """The pool's mean prompt tokens and mean cached tokens per answer. Constant in memory."""

    __slots__ = ("_cached", "_prompt")

    def __init__(self) -> None:
        self._prompt = PRIOR_TOKENS
        self._cached = 0.0

    def found(self, prompt_tokens: float, cached_tokens: float) -> None:
        """Record how much of an answered prompt the engine had cached; not to be called when the engine does not report it."""
        self._prompt += FADE * (prompt_tokens - self._prompt)
        self._cached += FADE * (cached_tokens - self._cached)

    @property
    def share(self) -> float:
        """Share of prompt tokens that were cached on the backend they were sent to; 0 to 1."""
        return min(1.0, self._cached / self._prompt)
