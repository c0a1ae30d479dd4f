import pytest

from bench.fleet.cells import Cell, Finished
from bench.fleet.report import DEFAULT, text

BOUND = {"ttft_mean_s": 0.5, "ttft_p99_s": 1.0, "hit_rate": 0.8}


def _cell(workload: str, policy: str, seed: int, mean: float, *, load: float = 0.92, replicas: int = 1) -> tuple[Cell, Finished]:
    cell = Cell(workload, load, replicas, True, seed, policy)
    figures = {"ttft_mean_s": mean, "ttft_p99_s": 4 * mean, "hit_rate": 0.6}
    return cell, Finished(cell, "", figures, BOUND if policy == DEFAULT else {})


def test_misses_and_bounds_are_printed() -> None:
    found = dict(
        _cell(workload, policy, seed, mean)
        for workload, policy, mean in (
            ("chat", DEFAULT, 1.0),
            ("chat", "p2c", 2.0),
            ("chat", "lmetric", 3.0),
            ("conversation", DEFAULT, 1.5),
            ("conversation", "p2c", 1.0),
            ("conversation", "lmetric", 6.0),
        )
        for seed in (0, 1)
    )
    made = text(found, "command")
    assert "| chat @ 92% | 1 | 0.5 | 2 (p2c) | 0.50 ± 0.00 | 4 | 1 | 8 (p2c) | 0.50 ± 0.00 | 60.0% | 80.0% | 75% | 2 |" in made
    assert "- conversation @ 92%: mean 1.50 ± 0.00 of p2c" in made
    assert "1 of 2 lines (goal 3: met)" in made
    assert "at least 75% of the pooled bound (conversation @ 92%; goal 92%: **missed**)" in made
    # sqrt(0.5 * 1.5) for the best of each line and for p2c alone
    assert "| the best other of each line | 2 | 0.866 | 0.95 | met | 0.866 | 0.90 | met |" in made
    assert "p2c / p2c | 2 | 0.866 | 0.72 | **missed** | 0.866 | 0.70 | **missed** |" in made


def test_several_replicas_have_a_table_of_their_own() -> None:
    found = dict(
        _cell("chat", policy, 0, mean, replicas=replicas) for replicas in (1, 4) for policy, mean in ((DEFAULT, 1.0), ("p2c", 2.0))
    )
    single, several = text(found, "command").split("Several replicas")
    assert "4 replicas" not in single
    assert "chat @ 92%, 4 replicas, events on" in several


def test_a_default_alone_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="run the grid first"):
        text(dict([_cell("chat", DEFAULT, 0, 1.0)]), "command")
