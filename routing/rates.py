"""The speed of a backend as six numbers, and priors for a backend that has not been measured yet."""

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
}
"""Priors by class of hardware and size of model; hardware that is not listed starts as `UNKNOWN` and is learned."""

UNKNOWN: Final = PRIORS["h100-8b"]
