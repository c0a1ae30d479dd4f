"""Load reports for tests: those recorded of real SGLang, and others in its form."""

import json
from pathlib import Path
from typing import Any

import msgspec

RECORDED = Path(__file__).parent / "wire" / "engine_load" / "sglang-0.5.23.jsonl"
"""Frames of one idle second after the other, then of 7 requests to an engine that runs 4 at once (SGLang 0.5.23 on CPU)."""


def recorded() -> list[tuple[float, bytes, int, bytes]]:
    """Seconds after the first one, topic, number, report."""
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    frames = [(row["after_s"], *(bytes.fromhex(frame) for frame in row["frames"])) for row in rows]
    return [(after_s, topic, int.from_bytes(number, "big"), report) for after_s, topic, number, report in frames]


def report(running: Any = 0, waiting: Any = 0, used: Any = 0, capacity: Any = 1000, rank: Any = 0, uncached: Any = 0) -> bytes:
    """One `LoadStat` as SGLang 0.5.23 encodes it."""
    return msgspec.msgpack.encode(["LoadStat", running, waiting, used, capacity, rank, uncached, used, 64, 0, 0])
