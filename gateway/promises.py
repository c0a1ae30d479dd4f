"""Whether a finished request met the service levels (SLO) of its tenant's policy. Pure."""

from typing import Final

from domain.faults import Fault, Source
from policies.compile import TenantPolicy

TTFT: Final = "ttft"
TPOT: Final = "tpot"
PROMISES: Final = (TTFT, TPOT)

Kept = tuple[tuple[str, bool], ...]
"""Whether each service level was met, by its name; a level that is not set, or that this request says nothing about, is not in it."""


def kept(policy: TenantPolicy, ttft_s: float | None, decode_s: float | None, tokens: int, fault: Fault | None) -> Kept:
    """Which service levels a streamed request met.

    A request without any token, that was not at fault itself, has missed the time to the first token. The time per output token (TPOT) is
    the mean over a complete answer, so an answer that broke off is not judged by it.

    Args:
        ttft_s: seconds to the first event; None for none.
        decode_s: seconds from the first event to the last one.
        tokens: completion tokens of the whole answer.
    """
    results = []
    if policy.ttft_slo_s is not None:
        if ttft_s is not None:
            results.append((TTFT, ttft_s <= policy.ttft_slo_s))
        elif fault is not None and fault.source is not Source.CALLER:
            results.append((TTFT, False))
    if policy.tpot_slo_s is not None and fault is None and decode_s is not None and tokens > 1:
        results.append((TPOT, decode_s / (tokens - 1) <= policy.tpot_slo_s))
    return tuple(results)
