"""Profiles of ServeGen become arrivals with their rates and lengths."""

import random
from pathlib import Path

import pytest

from domain.clock import Rng
from routing.simulation.traces import load


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


QUANTILES = "[10,20,30,40,50,60,70,80,90,100,110,120,130,140,75,150]"
LINES = (
    '{"model":"m","client":3,"n_windows":2,"window_s":600,"rate":[[0,0.5,1.2,"Gamma",0.75,0.04],[86400,2.0,1.9,"Weibull",0.6,0.01]],'
    f'"lengths":{{"0":{{"input_tokens":{QUANTILES},"output_tokens":{QUANTILES}}}}}}}\n'
    '{"model":"m","client":4,"n_windows":2,"window_s":600,"rate":[[0,1.0,1.2,"Gamma",0.75,0.04]],"lengths":null}\n'
)


def test_the_busiest_hour_has_its_rate(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(LINES)
    workload = load(tmp_path / "t.jsonl", dice)
    assert len(workload.turns) == 1200
    assert {turn.tenant for turn in workload.turns} == {"client-3"}
    assert all(0 <= turn.at_s <= 3600 and 10 <= turn.prompt_tokens <= 150 for turn in workload.turns)
    assert sum(turn.prompt_tokens for turn in workload.turns) / 1200 == pytest.approx(70, rel=0.1)
    assert "1 clients without lengths were left out" in workload.notes


def test_equal_dice_give_equal_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(LINES)
    assert load(tmp_path / "t.jsonl", dice) == load(tmp_path / "t.jsonl", dice)
