"""What decisions know of engines beside their load: the speed of each, and how much of their caches is used again.

`Rates` is a backend's speed as six numbers, `PRIORS` has them for a backend that has not been measured yet.

`Reuse` says how much of what engines cache is used again, as one share for a pool: the cost of evicting cached prompts. Source: each
answer's `cached_tokens` over its prompt's tokens, both averaged with weights that fade by 1 % per answer. It begins at 0.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Rates(NamedTuple):
    """prefill seconds = a + b*u + c*u*ctx for u uncached tokens with ctx tokens of context; step seconds = d + e*sequences + f*tokens."""

    prefill_s: float
    prefill_s_token: float
    prefill_s_token_ctx: float
    step_s: float
    step_s_seq: float
    step_s_token: float


PRIORS: Final[Mapping[str, Rates]] = {
    # derived from kernel timings and memory bandwidth (8B on one H100, 70B on four); the form was checked against runs of vLLM 0.19
    "h100-8b": Rates(0.0065, 2.5e-5, 8e-10, 0.0065, 2e-5, 5e-8),
    "h100-70b-tp4": Rates(0.018, 7e-5, 1e-9, 0.018, 3e-5, 3e-8),
    # fitted to 300 requests each, 8B on one card
    "rtx-pro-6000-8b": Rates(0.0108, 4.5e-5, 8e-10, 0.0108, 1e-5, 1.1e-7),
    "rtx-4090-8b": Rates(0.0191, 1.5e-4, 8e-10, 0.0191, 5e-5, 1.3e-7),
    # SmolLM2-135M in llama.cpp's generic build on one core: processor time of prompts of 70 to 670 tokens and answers of 20 to 40
    "cpu-135m": Rates(0.03, 1.75e-2, 1e-7, 0.03, 0.01, 1e-6),
}
"""Priors by class of hardware and size of model; hardware that is not listed starts as `UNKNOWN_RATES` and is learned."""

UNKNOWN_RATES: Final = PRIORS["h100-8b"]


REUSE_FADE: Final = 0.01
"""Weight of one more answer in the means."""
REUSE_PRIOR_TOKENS: Final = 1024.0
"""Prompt tokens of the mean before any answer."""


class Reuse:
    """The pool's mean prompt tokens and mean cached tokens per answer. Constant in memory."""

    __slots__ = ("_cached", "_prompt", "share")

    def __init__(self) -> None:
        self._prompt = REUSE_PRIOR_TOKENS
        self._cached = 0.0
        self.share = 0.0
        """Share of prompt tokens that were cached on the backend they were sent to; 0 to 1."""

    def note(self, prompt_tokens: float, cached_tokens: float) -> None:
        """Record how much of an answered prompt the engine had cached; not to be called when the engine does not report it."""
        self._prompt += REUSE_FADE * (prompt_tokens - self._prompt)
        self._cached += REUSE_FADE * (cached_tokens - self._cached)
        self.share = self._cached / self._prompt if self._cached < self._prompt else 1.0
