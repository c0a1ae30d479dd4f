"""The ledger's export, spread over its days."""

import random
from pathlib import Path

import pytest

from domain.clock import Rng
from routing.simulation.traces import load


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


LINES = """day,tenant,model,lora,requests,prompt_tokens,completion_tokens,cached_tokens,reasoning_tokens,units,cost_nanousd
2026-11-19,acme,chat,,1000,500000,90000,128000,0,1,1
2026-11-20,acme,chat,x,10,5000,900,0,0,1,1
"""


def test_totals_become_requests_with_their_means(tmp_path: Path) -> None:
    (tmp_path / "usage.csv").write_text(LINES)
    turns = load(tmp_path / "usage.csv", dice).turns
    yesterday = [turn for turn in turns if turn.at_s < 86_400]
    assert [len(turns), len(yesterday)] == [1010, 1000]
    assert sum(turn.prompt_tokens for turn in yesterday) / 1000 == pytest.approx(500, rel=0.15)
    assert sum(turn.output_tokens for turn in yesterday) / 1000 == pytest.approx(90, rel=0.15)
    assert len({turn.chain[1] for turn in yesterday}) == 1
    assert {turn.lora for turn in turns[-5:]} == {"x"}
