"""Laws of the draws: their means, and that ranks of Zipf fall."""

import random
from collections import Counter
from math import gamma

import pytest

from routing.simulation.draws import exponential, from_quantiles, gamma_draw, lognormal, weibull, zipf, zipf_weights


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_means_are_those_of_the_laws() -> None:
    rng = random.Random(1)
    assert mean([exponential(rng, 3.0) for _ in range(20_000)]) == pytest.approx(3.0, rel=0.03)
    for shape in (0.3, 0.75, 1.0, 4.0):
        assert mean([gamma_draw(rng, shape, 2.0) for _ in range(20_000)]) == pytest.approx(2.0 * shape, rel=0.06)
    for shape in (0.6, 1.0, 4.0):
        expected = 2.0 * gamma(1.0 + 1.0 / shape)
        assert mean([weibull(rng, shape, 2.0) for _ in range(20_000)]) == pytest.approx(expected, rel=0.06)
    assert sorted(lognormal(rng, 100.0, 1.0) for _ in range(20_001))[10_000] == pytest.approx(100.0, rel=0.05)


def test_draws_from_quantiles_have_them() -> None:
    vector = [float(i) for i in range(10, 150, 10)] + [1000.0]
    rng = random.Random(2)
    drawn = sorted(from_quantiles(rng, vector) for _ in range(20_000))
    assert drawn[0] >= 10.0
    assert drawn[-1] <= 1000.0
    assert drawn[10_000] == pytest.approx(70.0, rel=0.03)


def test_first_ranks_are_drawn_most() -> None:
    weights = zipf_weights(10)
    rng = random.Random(3)
    drawn = Counter(zipf(rng, weights) for _ in range(10_000))
    assert set(drawn) == set(range(10))
    assert drawn[0] == pytest.approx(10_000 / weights[-1], rel=0.1)
    assert drawn[0] > drawn[1] > drawn[4]
