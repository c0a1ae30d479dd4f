"""Whether a finished request kept what its tenant was promised. Pure."""

from typing import Final

from domain.faults import Fault, Source
from policies.compile import TenantPolicy

TTFT: Final = "ttft"
TPOT: Final = "tpot"
PROMISES: Final = (TTFT, TPOT)

Kept = tuple[tuple[str, bool], ...]
"""By promise; one that nothing was promised of, or nothing can be said of, is not in it."""


def kept(policy: TenantPolicy, ttft_s: float | None, decode_s: float | None, tokens: int, fault: Fault | None) -> Kept:
    """What became of each promise of a streamed answer.

    A request that no token came of, and that was not at fault itself, has missed the first. The second is about the mean time between the
    tokens of a whole answer (TPOT), so one that broke off says nothing of it.

    Args:
        ttft_s: to the first event; None for none.
        decode_s: from there to the last one.
        tokens: of the whole answer.
    """
    found = []
    if policy.ttft_slo_s is not None:
        if ttft_s is not None:
            found.append((TTFT, ttft_s <= policy.ttft_slo_s))
        elif fault is not None and fault.source is not Source.CALLER:
            found.append((TTFT, False))
    if policy.tpot_slo_s is not None and fault is None and decode_s is not None and tokens > 1:
        found.append((TPOT, decode_s / (tokens - 1) <= policy.tpot_slo_s))
    return tuple(found)
