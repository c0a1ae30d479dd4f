"""Trace files: how they are opened, and what is said of one that is no good."""

import gzip
import random
from pathlib import Path

import pytest

from domain.clock import Rng
from routing.simulation.traces import TraceError, load
from routing.simulation.traces.lines import lines


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


GOOD = '{"timestamp":0,"input_length":1030,"output_length":5,"hash_ids":[0,1,2]}\n'


def test_gzip_and_plain_lines_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("x\n\ny\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("x\n\ny\n")
    assert list(lines(tmp_path / "a.jsonl")) == list(lines(tmp_path / "b.jsonl.gz")) == [(1, b"x"), (3, b"y")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "{\n", ":2: input data was truncated"),
        (GOOD + '{"timestamp":-1,"input_length":1,"output_length":5,"hash_ids":[]}\n', ":2: expected `float` >= 0"),
        (
            GOOD + '{"timestamp":0,"input_length":1030,"output_length":5,"hash_ids":[0]}\n',
            ":2: has 1 hash_ids, but 1030 tokens are 2 whole",
        ),
        (GOOD + "what\n", ":2: JSON is malformed"),
        ("what is this\n", ":1: is no trace that Tidegate reads; it reads mooncake"),
        ("", ": is empty"),
        ("\n\n", ": is empty"),
        ('{"t":0.0,"tenant":13,"input_length":"x","output_length":199}\n', ":1: expected `int`, got `str`"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ": has no requests"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374\n",
            ":2: is not TIMESTAMP,ContextTokens,GeneratedTokens",
        ),
        ("day,requests,prompt_tokens,completion_tokens,cached_tokens\n2026-11-20,1,x,3,4\n", ":2: invalid literal"),
        ("day,requests,prompt_tokens,completion_tokens,cached_tokens\n2026-11-20,1\n", ":2: has 2 cells, the header 5"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(TraceError) as raised:
        load(file, dice)
    assert str(file) + said in str(raised.value)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl:1: cannot be read"):
        load(tmp_path / "none.jsonl", dice)
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(GOOD.encode())[:-9])
    with pytest.raises(TraceError, match="cannot be read"):
        load(tmp_path / "torn.jsonl.gz", dice)
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="has no file that ends with"):
        load(tmp_path / "folder", dice)


def test_a_folder_is_of_one_kind(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "b.jsonl").write_text('{"t":0.0,"tenant":13,"input_length":13,"output_length":199}\n')
    with pytest.raises(TraceError, match=r"is vtc-arena, but a\.jsonl is mooncake"):
        load(tmp_path, dice)
    (tmp_path / "b.jsonl").write_text(GOOD)
    assert len(load(tmp_path, dice).turns) == 2


def test_times_in_the_wrong_unit_are_named_and_those_of_the_epoch_are_not(tmp_path: Path) -> None:
    row = '{{"timestamp":{},"input_length":5,"output_length":5,"hash_ids":[]}}\n'
    file = tmp_path / "trace.jsonl"
    file.write_text(row.format(0) + row.format("1e300"))
    with pytest.raises(TraceError, match=r"goes on for 1\.16e\+292 days; at most 400"):
        load(file, dice)
    file.write_text(row.format(1_763_000_000_500) + row.format(1_763_000_000_000))
    assert [turn.at_s for turn in load(file, dice).turns] == [0.5, 0.0]
