"""The comparison of two samples: known values, an exact formula, and what a threshold can tell."""

from itertools import permutations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cache.two_samples import area, area_interval, compared, kolmogorov, would_be_seen

TIMES = st.lists(st.integers(0, 30).map(float), min_size=1, max_size=25)


@pytest.mark.parametrize(
    ("scaled", "chance"), [(0.8276, 0.5), (1.2238, 0.1), (1.3581, 0.05), (1.6276, 0.01), (1.9495, 0.001), (0.0, 1.0), (9.0, 0.0)]
)
def test_the_distribution_has_the_tables_critical_values(scaled: float, chance: float) -> None:
    """Smirnov's table of 1948, as every textbook has it."""
    assert kolmogorov(scaled) == pytest.approx(chance, rel=2e-3, abs=1e-30)


@pytest.mark.parametrize(
    ("one", "other", "statistic"),
    [
        ([1, 2, 3], [4, 5, 6], 1.0),
        ([1, 3, 5], [2, 4, 6], 1 / 3),
        ([1, 1, 2], [1, 2, 2], 1 / 3),
        ([7.0], [7.0], 0.0),
        ([1, 2, 3, 4], [3], 0.5),
    ],
)
def test_the_statistic_of_small_samples(one: list[float], other: list[float], statistic: float) -> None:
    assert compared(one, other).statistic == pytest.approx(statistic)


@given(TIMES, TIMES)
def test_the_statistic_is_the_largest_distance_of_the_two_shares_below(one: list[float], other: list[float]) -> None:
    shares = [(sum(x <= at for x in one) / len(one), sum(x <= at for x in other) / len(other)) for at in range(31)]
    found = compared(one, other)
    assert found.statistic == pytest.approx(max(abs(a - b) for a, b in shares))
    assert found == compared(other, one)


@pytest.mark.parametrize("step", [14, 19, 23, 27])
def test_the_chance_is_near_the_exact_one(step: int) -> None:
    """Gnedenko and Korolyuk (1951), for two samples of n without ties: P(D >= k / n) = 2 Σ (-1)^(i-1) C(2n, n - i k) / C(2n, n)."""
    n = 100
    exact = 2 * sum((-1) ** (i - 1) * comb(2 * n, n - i * step) for i in range(1, n // step + 1)) / comb(2 * n, n)
    one = np.arange(n, dtype=float)
    found = compared(one, one + step - 0.5)
    assert found.statistic == pytest.approx(step / n)
    assert found.p == pytest.approx(exact, rel=0.12)


def test_samples_of_one_distribution_are_seldom_told_apart() -> None:
    """Of 600 pairs of samples about 5 % have a p below 0.05, and of equal samples with a shift of a third of their spread all have."""
    dice = np.random.default_rng(3)
    below = [compared(dice.exponential(1, 400), dice.exponential(1, 500)).p < 0.05 for _ in range(600)]
    assert 0.025 < np.mean(below) < 0.075
    assert all(compared(dice.exponential(1, 400), dice.exponential(1, 500) + 1 / 3).p < 1e-4 for _ in range(100))


@given(TIMES, TIMES)
def test_the_area_is_the_share_of_pairs(one: list[float], other: list[float]) -> None:
    pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in one for b in other]
    assert area(one, other) == pytest.approx(sum(pairs) / len(pairs))


def test_the_area_says_which_sample_is_shorter() -> None:
    assert (area([1, 2], [3, 4]), area([3, 4], [1, 2]), area([1, 2], [1, 2])) == (1.0, 0.0, 0.5)


def test_the_interval_covers_the_area_of_the_distributions() -> None:
    """For two normal distributions of the same spread a shift of s deviations has the area Φ(s / √2): 0.5 for none, 0.76 for one."""
    dice = np.random.default_rng(5)
    for shift, true in ((0.0, 0.5), (1.0, 0.7602)):
        inside = 0
        for seed in range(8):
            low, high = area_interval(dice.normal(0, 1, 200), dice.normal(shift, 1, 200), seed)
            assert high - low < 0.15
            inside += low <= true <= high
        assert inside >= 6
    assert area_interval([1.0, 2.0], [1.5, 3.0], 7) == area_interval([1.0, 2.0], [1.5, 3.0], 7)


def test_what_would_be_seen_is_seen() -> None:
    dice = np.random.default_rng(6)
    one, other = dice.normal(1_000, 50, 2_000), dice.normal(1_000, 50, 2_000)
    shift = would_be_seen(one.tolist(), other.tolist(), 0.001)
    assert 1 < shift < 15
    assert compared(one - shift, other).p < 0.001 <= compared(one - shift + 0.2, other).p
    assert would_be_seen(one.tolist(), (other + 30).tolist(), 0.001) == 0.0


@pytest.mark.parametrize(("one", "other"), list(permutations(([], [1.0]))))
def test_an_empty_sample_is_refused(one: list[float], other: list[float]) -> None:
    for compare in (compared, area):
        with pytest.raises(ValueError):
            compare(one, other)
