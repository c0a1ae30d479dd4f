"""Mooncake's traces (FAST'25, Kimi's production): JSON lines of arrival, lengths and chained ids of 512-token blocks.

    {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, ...]}

Equal ids mean equal prefixes, within a file. There are no tenants and no sessions. Source: kvcache-ai/Mooncake, FAST25-release/traces.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from routing.simulation.traces.lines import rows, wrong
from routing.simulation.turns import Dice, TraceRequest, Workload, chained

BLOCK_TOKENS: Final = 512


class MooncakeLine(msgspec.Struct):
    """One line of the trace: a request."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[int]


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"hash_ids"' in head and b'"input_length"' in head


def read(files: list[Path], dice: Dice) -> Workload:
    """All requests; the first of all arrives at 0. Raises TraceError."""
    turns = []
    for at, file in enumerate(files):
        for number, row in rows(file, MooncakeLine):
            blocks = row.input_length // BLOCK_TOKENS
            if len(row.hash_ids) < blocks:
                raise wrong(
                    file, number, f"has {len(row.hash_ids)} hash_ids, but {row.input_length} tokens are {blocks} whole blocks of 512"
                )
            chain = [chained(at, block) for block in row.hash_ids[:blocks]]
            turns.append(TraceRequest(row.timestamp / 1e3, row.input_length, max(1, row.output_length), chain))
    # timestamps of traces made from logs do not begin at 0
    start = min([turn.at_s for turn in turns], default=0.0)
    if start:
        turns = [msgspec.structs.replace(turn, at_s=turn.at_s - start) for turn in turns]
    return Workload("mooncake", turns, BLOCK_TOKENS)
