"""How much of what engines cache is used again, as one share for a pool: what there is to lose by pushing something out of a cache.

Source: each answer's `cached_tokens` over its prompt's tokens, both averaged with weights that fade by 1 % per answer. It begins at 0.
"""

from typing import Final

FADE: Final = 0.01
PRIOR_TOKENS: Final = 1024.0


class Reuse:
    """Constant in memory."""

    __slots__ = ("_cached", "_prompt")

    def __init__(self) -> None:
        self._prompt = PRIOR_TOKENS
        self._cached = 0.0

    def found(self, prompt_tokens: float, cached_tokens: float) -> None:
        """What an engine says it had cached of an answered prompt; not to be called where it does not say."""
        self._prompt += FADE * (prompt_tokens - self._prompt)
        self._cached += FADE * (cached_tokens - self._cached)

    @property
    def share(self) -> float:
        """Of prompt tokens, those that were cached where they were sent; 0 to 1."""
        return min(1.0, self._cached / self._prompt)
