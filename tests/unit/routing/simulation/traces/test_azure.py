"""Azure lines as published."""

import random
from pathlib import Path

import pytest

from domain.clock import Rng
from routing.simulation.traces import load


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


def test_files_are_tenants_and_time_is_one(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    (tmp_path / "code.csv").write_text(head + "2023-11-16 18:17:03.9799600,4808,10\n")
    (tmp_path / "conv.csv").write_text(head + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
    turns = load(tmp_path, dice).turns
    assert [(turn.tenant, turn.prompt_tokens, turn.output_tokens) for turn in turns] == [
        ("conv", 374, 44),
        ("conv", 396, 109),
        ("code", 4808, 10),
    ]
    assert [turn.at_s for turn in turns] == pytest.approx([0.0, 4.314579, 77.29937], abs=1e-5)
    assert not set(turns[1].chain) & set(turns[2].chain)
