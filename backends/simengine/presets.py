"""Timing of an engine step, and the constants of real machines.

    step_ms = c0 + c1 * prefill_tokens + c1a * sum(chunk * context) + c2 * decoding_seqs + c3 * kv_tokens_read

Source of the form: iteration-level models of vLLM V1, fitted within 2 % of mean TTFT and makespan to public runs of vLLM
0.19 on two GPUs. The H100 constants are derived from kernel timings and bandwidth, not fitted to an H100 run; check every claim also with
`c1` times 0.6 and times 1.6.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class Timing(msgspec.Struct, frozen=True):
    """Constants of one model on one machine; milliseconds, and tokens for the capacity."""

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
    """KV cache capacity."""

    def step_ms(self, prefill: list[tuple[int, int]], decoding: int, kv_read: int) -> float:
        """Duration of one step. `prefill`: (chunk, context) in tokens for each sequence that prefills in it."""
        tokens = sum(chunk for chunk, _ in prefill)
        attention = sum(chunk * context for chunk, context in prefill)
        return self.c0 + self.c1 * tokens + self.c1a * attention + self.c2 * decoding + self.c3 * kv_read


PRESETS: Final[Mapping[str, Timing]] = {
    # Llama-3.1-8B on one H100: 40k tokens/s of prefill, 6.5 ms per decode step at batch 1
    "h100-8b": Timing(c0=6.5, c1=0.025, c1a=8e-7, c2=0.02, c3=5e-5, kv_tokens=440_000),
    # Llama-3.1-70B on four H100 with tensor parallelism: 14k tokens/s, 18 ms
    "h100-70b-tp4": Timing(c0=18.0, c1=0.070, c1a=1e-6, c2=0.03, c3=3e-5, kv_tokens=450_000),
}
