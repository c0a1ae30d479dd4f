"""The ledger's export (`tidegate usage export --by day,tenant,...`): CSV of totals per day, tenant, project, key, model and adapter.

Totals have no arrival times. Each row's requests are spread evenly at random over its day, with lengths around the row's means as in the
public traces (lognormal, sigma 1); cached tokens are assumed to be a prefix common to the row's requests. The access log has each
request's own time; prefer it where it is kept.
"""

import csv
import datetime as dt
from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from domain.clock import Rng
from routing.simulation.draws import lognormal
from routing.simulation.traces.lines import lines, wrong
from routing.simulation.turns import Dice, TraceRequest, Workload, chained, fresh_chain

BLOCK_TOKENS: Final = 64
DAY_S: Final = 86_400.0
SIGMA: Final = 1.0
"""Sigma of the lognormal lengths."""
MAX_TURNS: Final = 5_000_000
"""Requests at most; more would not fit into memory."""
NEEDED: Final = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")


class Total(msgspec.Struct):
    """One row of the export: totals of a day, tenant, project, key, model and adapter."""

    labels: str
    day: dt.date | None
    tenant: str
    lora: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b"," in head and all(name.encode() in head for name in NEEDED) and not head.startswith(b"{")


def read(files: list[Path], dice: Dice) -> Workload:
    """Requests drawn from the totals. Raises TraceError."""
    totals = [total for file in files for total in _totals(file)]
    days = sorted({total.day for total in totals if total.day})
    turns: list[TraceRequest] = []
    for at, total in enumerate(totals):
        start = days.index(total.day) * DAY_S if total.day else 0.0
        turns += _drawn(total, start, dice(f"usage {total.labels}"), at)
        if len(turns) > MAX_TURNS:
            raise wrong(files[0], 1, f"more than {MAX_TURNS} requests; export fewer days or one tenant")
    turns.sort(key=lambda turn: turn.at_s)
    return Workload("usage", turns, BLOCK_TOKENS, ["arrivals and lengths are drawn: the export has totals per day"])


def _totals(file: Path) -> Iterator[Total]:
    names: list[str] = []
    for number, line in lines(file):
        cells = next(csv.reader([line.decode(errors="replace")]), [])
        if not names:
            names = cells
            if missing := [name for name in NEEDED if name not in names]:
                raise wrong(file, number, f"has no column {missing[0]}; write it with tidegate usage export --format csv")
            continue
        if len(cells) != len(names):
            raise wrong(file, number, f"has {len(cells)} cells, the header {len(names)}")
        row = dict(zip(names, cells, strict=True))
        try:
            numbers = {name: int(row[name]) for name in NEEDED}
            day = dt.date.fromisoformat(row["day"]) if row.get("day") else None
        except ValueError as error:
            raise wrong(file, number, str(error)) from None
        labels = "\0".join(value for name, value in row.items() if name not in NEEDED)
        yield Total(labels, day, row.get("tenant", ""), row.get("lora", ""), **numbers)


def _drawn(total: Total, start: float, rng: Rng, identity: int) -> Iterator[TraceRequest]:
    if total.requests < 1 or total.prompt_tokens < 1:
        return
    to_median = exp(-SIGMA * SIGMA / 2) / total.requests  # a lognormal's mean to its median
    common = total.cached_tokens / total.requests
    parent = crc32(total.labels.encode())
    head: list[int] = []
    for at in range(int(common) // BLOCK_TOKENS):
        parent = chained(parent, at)
        head.append(parent)
    for number in range(total.requests):
        prompt = max(1, len(head) * BLOCK_TOKENS, round(lognormal(rng, total.prompt_tokens * to_median, SIGMA)))
        output = max(1, round(lognormal(rng, total.completion_tokens * to_median, SIGMA)))
        rest = fresh_chain(prompt - len(head) * BLOCK_TOKENS, BLOCK_TOKENS, 15, identity, number)
        yield TraceRequest(start + rng.random() * DAY_S, prompt, output, head + rest, total.tenant, lora=total.lora)
