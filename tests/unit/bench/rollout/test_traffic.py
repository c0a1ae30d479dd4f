from itertools import pairwise
from math import exp
from random import Random
from statistics import fmean, stdev

import pytest

from bench.rollout.traffic import RATIOS, SHARES, Traffic, Version, poisson
from policies.rollout.samples import METRICS


def test_it_has_everything_that_is_compared() -> None:
    assert {*RATIOS, *SHARES} == {name for name, metric in METRICS.items() if metric.by_default}


@pytest.mark.parametrize("mean", [0.0, 0.3, 5.0, 200.0])
def test_counts_have_their_mean(mean: float) -> None:
    rng = Random(2)
    assert fmean(poisson(rng, mean) for _ in range(4000)) == pytest.approx(mean, rel=0.07)


def test_a_version_differs_by_what_it_says_and_the_same_by_nothing(pool: dict[str, list[float]]) -> None:
    rng = Random(3)
    for times in (1.0, 1.5):
        differences = []
        for _ in range(40):
            traffic = Traffic(rng, pool, Version("v", {"itl": times}))
            for index in range(30):
                both = traffic.interval(index, 0.5)
                means = [arm.tallies["itl"].total / arm.tallies["itl"].n for arm in (both.canary, both.baseline)]
                differences.append(means[0] - means[1])
        assert exp(fmean(differences)) == pytest.approx(times, rel=0.03)


def test_shares_are_added_to(pool: dict[str, list[float]]) -> None:
    traffic = Traffic(Random(4), pool, Version("v", {}, {"errors": 0.05}))
    seen = [traffic.interval(index, 0.5) for index in range(2000)]
    canary, baseline = [sum(getattr(one, arm).tallies["errors"].total for one in seen) for arm in ("canary", "baseline")]
    requests = sum(one.canary.requests for one in seen)
    assert (canary - baseline) / requests == pytest.approx(0.05, abs=0.01)


def test_noise_of_one_arm_lasts(pool: dict[str, list[float]]) -> None:
    traffic = Traffic(Random(5), pool, Version("v"), per_s=200.0)
    seen = []
    for index in range(1500):
        both = traffic.interval(index, 0.5)
        canary, baseline = both.canary.tallies["ttft"], both.baseline.tallies["ttft"]
        seen.append(canary.total / canary.n - baseline.total / baseline.n)
    middle, spread = fmean(seen), stdev(seen)
    after = fmean((a - middle) * (b - middle) for a, b in pairwise(seen)) / spread**2
    assert after > 0.6
