import math
from pathlib import Path

import pytest

from bench.fleet import workloads
from bench.fleet.cells import Cell, read
from bench.fleet.grid import DEFAULT, run, run_all
from bench.fleet.report import text

CELLS = [Cell("no-sharing", 0.9, 1, True, seed, policy, limit=40) for seed in (0, 1) for policy in (DEFAULT, "p2c", "d2lpm")]


@pytest.fixture(autouse=True)
def _capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "_capacities", lambda: {"no-sharing": 1.4, "conversation": 1.0})


def test_a_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    assert run_all(iter(CELLS[:2]), None, file, jobs=1, stop_after_s=math.inf) == (2, 0, 0)
    before = read([file], None)
    assert run_all(iter(cell for cell in CELLS if cell not in before), None, file, jobs=2, stop_after_s=math.inf) == (4, 0, 0)
    found = read([file], None)
    assert set(found) == set(CELLS)
    assert before.items() <= found.items()
    assert "no-sharing @ 90%" in text(found, "command")


def test_no_cell_begins_after_the_time(tmp_path: Path) -> None:
    assert run_all(iter(CELLS), None, tmp_path / "cells.jsonl", jobs=1, stop_after_s=-1.0) == (0, 0, 6)


def test_a_cell_is_the_same_in_every_run() -> None:
    first, again = run(CELLS[0], None), run(CELLS[0], None)
    assert first is not None
    assert again is not None
    assert first.figures == again.figures
    assert first.figures["requests"] == 32  # of 40, a fifth warms the caches up
    assert first.bound["ttft_mean_s"] <= first.figures["ttft_mean_s"]


def test_a_workload_without_its_trace_is_left_out(tmp_path: Path) -> None:
    cell = Cell("conversation", 0.9, 1, True, 0, "p2c", limit=40)
    assert run_all(iter([cell]), tmp_path, tmp_path / "cells.jsonl", jobs=1, stop_after_s=math.inf) == (0, 1, 0)
