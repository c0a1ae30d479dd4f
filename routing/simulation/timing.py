"""The duration of an engine's step, by class of machine.

    step_ms = c0 + c1 * prefill_tokens + c1a * sum(chunk * context) + c2 * decoding_seqs + c3 * kv_tokens_read

The same form and the same constants as the simulated engine's (`backends/simengine/settings.py`; a test compares them).
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class StepTiming(msgspec.Struct, frozen=True):
    """Constants of one model on one machine, in milliseconds."""

    c0: float
    """Fixed cost of a step: weights over memory bandwidth, launches."""
    c1: float
    """Per prefill token."""
    c1a: float
    """Per prefill token and token of context before it (attention)."""
    c2: float
    """Per decoding sequence."""
    c3: float
    """Per KV token read by decoding sequences."""
    kv_tokens: int
    """KV cache capacity in tokens."""

    def times(self, factor: float, prefill: float = 1.0) -> "StepTiming":
        """A machine that takes `factor` times as long, and `prefill` times as long again per prefill token."""
        scaled = {name: getattr(self, name) * factor for name in ("c0", "c1", "c1a", "c2", "c3")}
        return StepTiming(**{**scaled, "c1": scaled["c1"] * prefill, "c1a": scaled["c1a"] * prefill}, kv_tokens=self.kv_tokens)


CLASSES: Final[Mapping[str, StepTiming]] = {
    # derived from kernel timings and bandwidth, not fitted to a run: repeat a claim with prefill x 0.6 and x 1.6
    "h100-8b": StepTiming(c0=6.5, c1=0.025, c1a=8e-7, c2=0.02, c3=5e-5, kv_tokens=440_000),
    "h100-70b-tp4": StepTiming(c0=18.0, c1=0.070, c1a=1e-6, c2=0.03, c3=3e-5, kv_tokens=450_000),
    # fitted to what real vLLM 0.19 did with 300 ShareGPT requests and Llama-3.1-8B; the first never filled its cache, so its size there
    # is memory less weights; the second preempts all the time
    "rtx-pro-6000-8b": StepTiming(c0=10.8, c1=0.045, c1a=0.0, c2=0.01, c3=1.1e-4, kv_tokens=500_000),
    "rtx-4090-8b": StepTiming(c0=17.0, c1=0.1, c1a=0.0, c2=0.05, c3=1e-4, kv_tokens=40_000),
}

CLASS_GPUS: Final[Mapping[str, int]] = {"h100-70b-tp4": 4}
"""GPUs of an engine, by class; the others have one."""
