from math import exp, inf, isclose, lgamma, log, log1p, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.verdict import mean_radius, share_low

ALPHA = 0.01


def mixture_over_likelihood(hits: float, n: float, p: float) -> float:
    """Logarithm, from the definition."""
    misses = n - hits
    mixture = lgamma(hits + 0.5) + lgamma(misses + 0.5) - lgamma(n + 1) - 2 * lgamma(0.5)
    return mixture - hits * log(p) - (misses * log1p(-p) if misses else 0.0)


@given(st.floats(1, 1e6), st.floats(1e-4, 1), st.floats(1e-5, 0.2))
def test_a_share_is_possible_down_to_where_the_mixture_says_so(n: float, part: float, alpha: float) -> None:
    hits = part * n
    low = share_low(hits, n, alpha)
    assert 0 <= low <= part
    if low > 1e-300:
        assert mixture_over_likelihood(hits, n, low) == pytest.approx(log(1 / alpha), rel=1e-4, abs=1e-4)


@given(st.floats(1, 1e6), st.floats(1e-5, 0.2))
def test_without_hits_every_small_share_is_possible(n: float, alpha: float) -> None:
    assert share_low(0, n, alpha) == 0
    assert 0 < 1 - share_low(n, n, alpha) <= 1


@given(st.integers(0, 50), st.integers(50, 100_000))
def test_more_of_the_same_narrows_a_share(hits: int, n: int) -> None:
    assert share_low(4 * hits, 4 * n, ALPHA) >= share_low(hits, n, ALPHA)


@given(st.floats(0, 1e3, allow_subnormal=False), st.floats(1e-3, 1e6), st.floats(11, 1e6), st.floats(1e-5, 0.2))
def test_a_mean_is_surer_with_more_blocks_and_less_surely_asked(variance: float, information: float, blocks: float, alpha: float) -> None:
    radius = mean_radius(variance, information, blocks, alpha, 200)
    assert radius >= mean_radius(variance, information, 2 * blocks, alpha, 200) * (1 - 1e-9)
    assert radius >= mean_radius(variance, information, blocks, 2 * alpha, 200) * (1 - 1e-9) or alpha > 0.1


def test_of_too_few_blocks_a_mean_may_be_anywhere() -> None:
    assert mean_radius(1.0, 100.0, 1.0, ALPHA, 200.0) == inf
    assert mean_radius(1.0, 100.0, 3.0, ALPHA, 200.0) == inf


def test_with_many_blocks_it_is_robbins_normal_mixture() -> None:
    information, tight_at, both = 500.0, 200.0, 2 * ALPHA
    spent = -2 * log(both)
    k = tight_at / (spent + log1p(spent))
    robbins = sqrt((information + k) * log((information + k) / (k * both**2))) / information
    assert isclose(mean_radius(1 / information, information, 1e9, ALPHA, tight_at), robbins, rel_tol=1e-6)


def test_means_stay_within_at_every_look_together() -> None:
    rng, crossed, runs = Random(5), 0, 1000
    for _ in range(runs):
        total = squares = 0.0
        for n in range(1, 150):
            one = rng.gauss(0, 1)
            total, squares = total + one, squares + one * one
            if n < 2:
                continue
            mean = total / n
            variance = (squares - n * mean * mean) / (n - 1) / n
            if mean > mean_radius(variance, n, n, 0.05, 30.0):
                crossed += 1
                break
    assert crossed / runs <= 0.05
    assert crossed  # or the bound would be far too wide


def test_shares_stay_above_at_every_look_together() -> None:
    rng, crossed, runs, p = Random(6), 0, 1000, 0.05
    for _ in range(runs):
        hits = 0
        for n in range(1, 200):
            hits += rng.random() < p
            if share_low(hits, n, 0.05) > p:
                crossed += 1
                break
    assert 0 < crossed / runs <= 0.05


def test_one_in_ten_of_a_thousand_is_told_from_one_in_twenty() -> None:
    assert 0.05 < share_low(100, 1000, ALPHA) < 0.1
    assert exp(0) == 1 - share_low(0, 1000, ALPHA)
