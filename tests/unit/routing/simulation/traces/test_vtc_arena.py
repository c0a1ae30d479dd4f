"""Lines of the VTC trace as published."""

import random
from pathlib import Path

from domain.clock import Rng
from routing.simulation.traces import load


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


def test_tenants_are_kept(tmp_path: Path) -> None:
    lines = ('{"t":0.0,"tenant":13,"input_length":13,"output_length":199}', '{"t":0.2,"tenant":2,"input_length":36,"output_length":1}')
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    found = [(t.at_s, t.tenant, t.prompt_tokens, t.output_tokens) for t in load(tmp_path / "t.jsonl", dice).turns]
    assert found == [(0.0, "tenant-13", 13, 199), (0.2, "tenant-2", 36, 1)]
