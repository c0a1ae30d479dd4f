"""Pushed load: a report of sane numbers or a refusal in words, and the sum over ranks is never made of anything else."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.dialects.sglang import read_report
from backends.load_reports import LoadReports
from backends.signals import MAX_NUMBER
from tests.fuzz.mutation import Target

RECORDED = Path(__file__).parents[1] / "wire" / "engine_load" / "sglang-0.5.23.jsonl"
SEEDS = [bytes.fromhex(json.loads(line)["frames"][-1]) for line in RECORDED.read_text().splitlines()]
pack = msgspec.msgpack.encode
PIECES = [
    *map(pack, (None, True, -1, 0, 1, 2**63, 2**64 - 1, 1.5, "", "LoadStat", b"", [], {})),
    b"\xdd\xff\xff\xff\xff",
    b"\xc1",
    b"\x91" * 1500,
    b"\x9b",
]
REPORTS = Target("load_reports", PIECES, SEEDS)


def report(payload: bytes) -> str:
    reports = LoadReports(1, read_report)
    taken = reports.take_message(0, 1, payload, 1.0)
    pushed = reports.pushed(1.0)
    if pushed is not None:
        assert taken
        for value in (pushed.running, pushed.waiting, pushed.waiting_uncached_tokens, pushed.kv_capacity_tokens):
            assert value is None or (type(value) is int and 0 <= value <= MAX_NUMBER)
        assert pushed.kv_usage is None or 0 <= pushed.kv_usage <= 1
        return "ok"
    reason = reports.state(1.0).reason
    assert 0 < len(reason) < 400
    assert reason.isprintable()
    return " ".join(word for word in reason.split() if word.isalpha())


@pytest.mark.parametrize("path", REPORTS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    report(path.read_bytes())


def test_reports_are_sane_or_refused_in_words(record_property: Any) -> None:
    record_property("figure", REPORTS.run(report, 3_000))
