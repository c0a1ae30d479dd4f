"""Mooncake's traces (FAST'25, Kimi's production): JSON lines of arrival, lengths and chained ids of 512-token blocks.

    {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, ...]}

Equal ids mean equal prefixes, within a file. There are no tenants and no sessions. Source: kvcache-ai/Mooncake, FAST25-release/traces.

The times of some of these traces are rounded to three seconds: ten to twenty requests would arrive at one instant, and no policy could
learn of one before it decides about the next. Where the times of a file are equally far apart, by a second or more, and requests share
them, each request gets a random moment of that interval, in the order of the file.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import msgspec

from domain.clock import Rng
from routing.simulation.traces.lines import rows, wrong
from routing.simulation.turns import Dice, TraceRequest, Workload, chained

BLOCK_TOKENS: Final = 512

ROUNDED_MS: Final = 1000
"""Milliseconds between two times from which on times are taken as rounded, if most of them are so far apart."""
REGULAR: Final = 0.9
"""Share of the times that have to be as far from the next one as half of them are."""
UNEVEN: Final = 0.01
"""Part by which such distances differ: 2,999 to 3,001 ms are one distance."""
SHARED: Final = 2
"""Requests at one time, on average, from which on times are taken as rounded."""


class MooncakeLine(msgspec.Struct):
    """One line of the trace: a request."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[int]


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"hash_ids"' in head and b'"input_length"' in head


def spread(times: Sequence[float], rng: Rng) -> list[float]:
    """Times in milliseconds with random moments in place of rounded ones; times that are not rounded stay as they are."""
    distinct = sorted(set(times))
    gaps = sorted([later - earlier for earlier, later in pairwise(distinct)])
    step = gaps[len(gaps) // 2] if gaps else 0.0
    regular = sum([abs(gap - step) <= UNEVEN * step for gap in gaps]) >= REGULAR * len(gaps)
    if step < ROUNDED_MS or not regular or len(times) < SHARED * len(distinct):
        return list(times)
    drawn: dict[float, list[float]] = {}
    for time, count in Counter(times).items():
        drawn[time] = sorted([time + rng.random() * step for _ in range(count)], reverse=True)
    return [drawn[time].pop() for time in times]


def read(files: list[Path], dice: Dice) -> Workload:
    """All requests; the first of all arrives at 0. Raises TraceError."""
    turns = []
    for at, file in enumerate(files):
        found = list(rows(file, MooncakeLine))
        times = spread([row.timestamp for _, row in found], dice("arrivals"))
        for (number, row), arrived_ms in zip(found, times, strict=True):
            blocks = row.input_length // BLOCK_TOKENS
            if len(row.hash_ids) < blocks:
                raise wrong(
                    file, number, f"has {len(row.hash_ids)} hash_ids, but {row.input_length} tokens are {blocks} whole blocks of 512"
                )
            chain = [chained(at, block) for block in row.hash_ids[:blocks]]
            turns.append(TraceRequest(arrived_ms / 1e3, row.input_length, max(1, row.output_length), chain))
    # timestamps of traces made from logs do not begin at 0
    start = min([turn.at_s for turn in turns], default=0.0)
    if start:
        turns = [msgspec.structs.replace(turn, at_s=turn.at_s - start) for turn in turns]
    return Workload("mooncake", turns, BLOCK_TOKENS)
