"""Tidegate's own Records, as its access log writes them: JSON lines; the answered requests are replayed.

    {"at": "2026-09-21T14:13:20.100000Z", "outcome": "ok", "tenant": "acme", "model": "chat", "prompt_tokens": 812, "completion_tokens": 96,
     "cached_tokens": 768, ...}

A Record holds no prompt. The cached tokens are assumed to be a prefix common to all requests of one tenant for one model, and the rest to
be unique; so sharing that the recorded policy missed stays missed, and a policy can lose by caching but hardly gain. Log lines that are
not Records, and requests without tokens, are skipped and counted.
"""

from datetime import datetime
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from routing.simulation.traces.lines import lines, wrong
from routing.simulation.turns import Dice, TraceRequest, Workload, chained, fresh_chain

BLOCK_TOKENS: Final = 64
"""Tokens per block: fine enough for short common prefixes."""


class AccessLogLine(msgspec.Struct):
    """The fields of one line that a replay needs."""

    at: datetime | float | None = None
    """Seconds since the epoch in logs of earlier versions."""
    outcome: str = ""
    tenant: str = ""
    model: str = ""
    lora: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def at_unix(self) -> float:
        """Seconds since the epoch."""
        return self.at.timestamp() if isinstance(self.at, datetime) else self.at or 0.0


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"request_id"' in head and b'"outcome"' in head


def read(files: list[Path], dice: Dice) -> Workload:
    """All answered requests. Raises TraceError."""
    decoder = msgspec.json.Decoder(AccessLogLine)
    answered: list[AccessLogLine] = []
    skipped = 0
    for file in files:
        for number, line in lines(file):
            try:
                row = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise wrong(file, number, str(error)) from None
            if row.at is None or row.prompt_tokens < 1:
                skipped += 1
                continue
            answered.append(row)
    answered.sort(key=lambda row: row.at_unix)
    start = answered[0].at_unix if answered else 0.0
    turns = [
        TraceRequest(r.at_unix - start, r.prompt_tokens, max(1, r.completion_tokens), _chain(r, n), r.tenant, lora=r.lora)
        for n, r in enumerate(answered)
    ]
    notes = ["Records hold no prompts: what was cached is taken for the tenant's common beginning"]
    if skipped:
        notes.append(f"{skipped} lines without a request that used tokens were left out")
    return Workload("records", turns, BLOCK_TOKENS, notes)


def _chain(row: AccessLogLine, number: int) -> list[int]:
    parent = crc32(f"{row.tenant}\0{row.model}\0{row.lora}".encode())
    chain = []
    for at in range(min(row.cached_tokens, row.prompt_tokens) // BLOCK_TOKENS):
        parent = chained(parent, at)
        chain.append(parent)
    rest = row.prompt_tokens // BLOCK_TOKENS - len(chain)
    return chain + fresh_chain(rest * BLOCK_TOKENS, BLOCK_TOKENS, 14, number)
