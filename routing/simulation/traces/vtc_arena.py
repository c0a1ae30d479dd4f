"""The multi-tenant trace of the VTC paper (OSDI'24): JSON lines of arrival, tenant and lengths; no prefixes.

    {"t": 0.207938, "tenant": 2, "input_length": 36, "output_length": 137}

Source: Ying1123/VTC-artifact, fair_bench/real_trace.pkl, without its placeholder prompts.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from routing.simulation.traces.lines import rows
from routing.simulation.turns import BLOCK_TOKENS, Dice, TraceRequest, Workload, fresh_chain


class VtcArenaLine(msgspec.Struct):
    """One line of the trace: a request."""

    t: Annotated[float, msgspec.Meta(ge=0)]
    tenant: int
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"tenant"' in head and b'"input_length"' in head


def read(files: list[Path], dice: Dice) -> Workload:
    """All requests. Raises TraceError."""
    turns = [
        TraceRequest(
            r.t, r.input_length, max(1, r.output_length), fresh_chain(r.input_length, BLOCK_TOKENS, 12, at, n), f"tenant-{r.tenant}"
        )
        for at, file in enumerate(files)
        for n, r in rows(file, VtcArenaLine)
    ]
    return Workload("vtc-arena", turns, notes=["no prefixes are known: no two requests share one"])
