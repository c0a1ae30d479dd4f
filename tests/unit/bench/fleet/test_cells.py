from pathlib import Path

import pytest

from bench.fleet.cells import Cell, Finished, append, code, ordered, read

CELL = Cell("chat", 0.92, 1, True, 0, "p2c")


def _finished(cell: Cell, mean: float = 1.0, of: str = "now") -> Finished:
    return Finished(cell, of, {"ttft_mean_s": mean})


def test_finished_cells_are_read_back_from_several_files(tmp_path: Path) -> None:
    other = Cell("chat", 0.92, 4, False, 1, "p2c")
    append(tmp_path / "new" / "a.jsonl", _finished(CELL))
    append(tmp_path / "b.jsonl", _finished(other))
    found = read([tmp_path / "new" / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "missing.jsonl"], "now")
    assert set(found) == {CELL, other}


def test_a_half_written_line_is_left_out_and_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    append(file, _finished(CELL))
    file.write_bytes(file.read_bytes() + b'{"cell":{"workl')
    assert set(read([file], None)) == {CELL}
    again = Cell("chat", 0.92, 1, True, 1, "p2c")
    append(file, _finished(again))
    assert set(read([file], None)) == {CELL, again}
    assert file.read_bytes().count(b"\n") == 2


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("no JSON\n")
    append(file, _finished(CELL))
    with pytest.raises(ValueError, match=r"a\.jsonl:1: is no finished cell"):
        read([file], None)


def test_cells_of_other_code_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    append(file, _finished(CELL, of="before"))
    assert read([file], "now") == {}
    assert set(read([file], None)) == {CELL}
    assert len(code()) == 12


def test_seeds_come_one_after_the_other_and_peers_alone_run_elsewhere() -> None:
    variants = [(1, True), (4, False)]
    cells = list(ordered(["a", "b"], [0.6], variants, range(2), ["x", "y", "z"], ["x"], part="open", limit=9))
    assert [cell.seed for cell in cells] == [0] * 8 + [1] * 8
    assert {cell.policy for cell in cells if cell.replicas == 4} == {"x"}
    assert len(set(cells)) == len(cells)


def test_a_line_is_named_with_what_is_unusual_about_it() -> None:
    assert str(CELL.line) == "chat @ 92%"
    assert str(Cell("chat", 0.6, 2, False, 0, "x", "sealed").line) == "chat @ 60%, 2 replicas, events off, sealed"
