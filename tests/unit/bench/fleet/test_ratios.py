import math

import pytest

from bench.fleet.cells import Cell, Finished, Line
from bench.fleet.ratios import against_best, against_fixed, by_line, geometric, ratio


def _runs(**means: list[float]) -> dict[str, dict[int, Finished]]:
    return {
        policy: {seed: Finished(Cell("w", 0.9, 1, True, seed, policy), "", {"m": value}) for seed, value in enumerate(values)}
        for policy, values in means.items()
    }


def test_a_ratio_is_paired_by_seed_with_students_interval() -> None:
    found = ratio(_runs(own=[1.0, 4.0, 9.0], other=[2.0, 4.0, 4.5]), "own", "other", "m")
    assert found is not None
    assert found.value == pytest.approx(1.0)
    # logarithms -ln 2, 0, ln 2: their deviation is ln 2
    assert found.high == pytest.approx(math.exp(4.303 * math.log(2) / math.sqrt(3)))
    assert found.low == pytest.approx(1 / found.high)
    assert found.seeds == 3
    assert not found.missed


def test_one_seed_has_no_interval_and_is_judged_by_the_ratio() -> None:
    found = ratio(_runs(own=[1.1], other=[1.0]), "own", "other", "m")
    assert found is not None
    assert math.isinf(found.high)
    assert found.missed


def test_level_within_three_percent_is_not_missed() -> None:
    found = ratio(_runs(own=[1.02, 1.02], other=[1.0, 1.0]), "own", "other", "m")
    assert found is not None
    assert found.low > 1.0
    assert not found.missed


def test_the_best_other_is_the_one_with_the_largest_ratio() -> None:
    best = against_best(_runs(own=[1.0, 1.0], slow=[3.0, 3.0], fast=[0.5, 0.5]), "own", "m")
    assert best is not None
    assert best.other == "fast"
    assert best.value == pytest.approx(2.0)
    assert against_best(_runs(own=[1.0]), "own", "m") is None
    assert ratio(_runs(own=[1.0]), "own", "other", "m") is None


def test_the_best_fixed_other_is_best_over_all_lines() -> None:
    lines = {Line("a", 0.9, 1, True, "open"): _runs(own=[1.0], x=[0.5], y=[1.0], z=[0.1])}
    lines[Line("b", 0.9, 1, True, "open")] = _runs(own=[1.0], x=[8.0], y=[1.0])
    # z did not run on b; x is best on a and bad on b
    found = against_fixed(lines, "own", "m")
    assert [name for _, name in found] == ["y", "x"]
    assert [value for value, _ in found] == pytest.approx([1.0, 0.5])


def test_cells_of_several_limits_are_not_mixed() -> None:
    cells = [Cell("w", 0.9, 1, True, 0, "x", limit=limit) for limit in (10, 20)]
    with pytest.raises(ValueError, match="--limit 10, 20"):
        by_line({cell: Finished(cell, "", {}) for cell in cells})


def test_the_geometric_mean_of_nothing_is_one() -> None:
    assert geometric([]) == 1.0
    assert geometric([2.0, 8.0]) == pytest.approx(4.0)
