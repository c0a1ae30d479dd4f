"""Mooncake lines as published."""

import random
from pathlib import Path

from domain.clock import Rng
from routing.simulation.traces import load
from routing.simulation.traces.mooncake import spread


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


LINES = """{"timestamp":0,"input_length":1100,"output_length":6,"hash_ids":[0,1,2]}
{"timestamp":3000,"input_length":1536,"output_length":0,"hash_ids":[0,1,7]}
"""


def test_ids_are_prefixes_of_whole_blocks(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(LINES)
    workload = load(tmp_path / "t.jsonl", dice)
    first, second = workload.turns
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 1100, 6)
    assert (second.at_s, second.output_tokens) == (3.0, 1)
    assert [len(first.chain), len(second.chain)] == [2, 3]
    assert list(first.chain) == list(second.chain[:2])
    assert workload.block_tokens == 512


def test_times_rounded_to_seconds_are_spread_in_the_order_of_the_file() -> None:
    rounded = [0.0] * 5 + [3000.0] * 4 + [5999.0] * 6 + [9000.0] * 2
    times = spread(rounded, dice("arrivals"))
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert all(before <= after <= before + 3000.0 for before, after in zip(rounded, times, strict=True))
    assert spread(rounded, dice("arrivals")) == times


def test_times_that_are_not_rounded_stay_as_they_are() -> None:
    for times in ([0.0, 0.0, 0.0, 17.0, 17.0, 3000.0], [0.0, 3000.0, 6000.0], []):
        assert spread(times, dice("arrivals")) == times
