from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.evidence import LEAST_BLOCKS, OWN_NOISE, RatioEvidence, Scatter, ShareEvidence, no_evidence
from policies.rollout.samples import NOTHING, ArmSums, Interval, Tally

COUNTS = st.integers(1, 1000)
TALLIES = st.builds(lambda n, mean: Tally(n, n * mean), COUNTS, st.floats(-10, 10))


def folded(*pairs: tuple[Tally, Tally]) -> RatioEvidence:
    seen = RatioEvidence()
    for canary, baseline in pairs:
        seen = seen.fold(canary, baseline)
    return seen


@given(st.lists(st.tuples(TALLIES, TALLIES), min_size=1, max_size=40), st.floats(-5, 5))
def test_what_moves_both_arms_at_once_is_no_difference(pairs: list[tuple[Tally, Tally]], both: float) -> None:
    def moved(tally: Tally, i: int) -> Tally:
        return Tally(tally.n, tally.total + tally.n * both * i)

    plain = folded(*pairs)
    shifted = folded(*((moved(canary, i), moved(baseline, i)) for i, (canary, baseline) in enumerate(pairs)))
    assert shifted.difference == pytest.approx(plain.difference, abs=1e-6)


@given(st.lists(st.tuples(TALLIES, TALLIES), min_size=1, max_size=40))
def test_its_difference_is_the_weighted_mean_of_those_of_intervals(pairs: list[tuple[Tally, Tally]]) -> None:
    weights = [1 / (1 / canary.n + 1 / baseline.n + OWN_NOISE) for canary, baseline in pairs]
    differences = [canary.total / canary.n - baseline.total / baseline.n for canary, baseline in pairs]
    mean = sum(w * d for w, d in zip(weights, differences, strict=True)) / sum(weights)
    assert folded(*pairs).difference == pytest.approx(mean, abs=1e-9)


@given(TALLIES)
def test_an_interval_with_one_arm_says_nothing(tally: Tally) -> None:
    assert RatioEvidence().fold(tally, NOTHING) == RatioEvidence() == RatioEvidence().fold(NOTHING, tally)
    assert ShareEvidence().fold(tally, NOTHING) == ShareEvidence() == ShareEvidence().fold(NOTHING, tally)


def test_too_few_intervals_do_not_say_how_far_they_scatter() -> None:
    one = (Tally(5, 1.0), Tally(5, 0.5))
    assert folded().scatter(0.0) == (float("inf"), 0.0)
    assert folded(*[one] * (LEAST_BLOCKS - 1)).scatter(0.0)[1] == 0
    assert folded(*[one] * (LEAST_BLOCKS + 1)).scatter(0.0)[1] == pytest.approx(LEAST_BLOCKS + 1)


def test_the_scatter_of_independent_intervals_is_that_of_their_mean() -> None:
    rng = Random(1)
    found = []
    for _ in range(100):
        pairs = [(Tally(10, 10 * rng.gauss(0, 0.3)), Tally(1000, 0.0)) for _ in range(100)]
        found.append(folded(*pairs).scatter(0.0)[0])
    assert 0.0009 <= sum(found) / 100 <= 0.0016  # at least the true one, a little more for taking the widest of several


def test_noise_that_lasts_is_seen_in_longer_blocks() -> None:
    rng, found, means = Random(2), [], []
    for _ in range(100):
        level, pairs = rng.gauss(0, 0.3), []
        for _ in range(700):
            level = 0.9 * level + 0.3 * (1 - 0.81) ** 0.5 * rng.gauss(0, 1)
            pairs.append((Tally(10, 10 * level), Tally(1000, 0.0)))
        seen = folded(*pairs)
        found.append(seen.scatter(0.0)[0])
        means.append(seen.difference)
    true = sum(mean * mean for mean in means) / 100
    assert 0.7 * true < sum(found) / 100 < 2 * true  # the shortest blocks alone say a nineteenth


def test_what_is_assumed_of_lasting_noise_gets_less_with_intervals() -> None:
    one = (Tally(5, 1.0), Tally(5, 0.5))
    assert folded(*[one] * 20).scatter(0.4)[0] == pytest.approx(0.4 / 20)
    assert folded(*[one] * 80).scatter(0.4)[0] == pytest.approx(0.4 / 80)


def test_counts_that_come_in_bursts_scatter_more() -> None:
    rng, independent, bursts = Random(3), Scatter(), Scatter()
    for _ in range(3000):
        independent = independent.fold(Tally(200, sum(rng.random() < 0.02 for _ in range(200))))
        bursts = bursts.fold(Tally(200, 20.0 if rng.random() < 0.1 else 2.0))
    assert 1 <= independent.dispersion < 1.1
    assert bursts.dispersion == pytest.approx(0.1 * 0.9 * 18**2 / 3.8, rel=0.15)


def test_shares_are_held_against_the_same_intervals() -> None:
    # the baseline has more errors later, when the canary has more traffic; both arms have the same share in every interval
    seen = ShareEvidence()
    for canary, baseline, share in ((10, 1000, 0.01), (500, 500, 0.10)):
        seen = seen.fold(Tally(canary, canary * share), Tally(baseline, baseline * share))
    assert seen.hits == pytest.approx(seen.expected)


@given(st.integers(1, 100), st.integers(1, 100))
def test_assumed_noise_makes_shares_less_sure(intervals: int, n: int) -> None:
    seen = ShareEvidence()
    for _ in range(intervals):
        seen = seen.fold(Tally(n, 0.0), Tally(n, 1.0))
    plain, noisy = seen.effective_samples(0.0), seen.effective_samples(1.0)
    assert plain[0] == pytest.approx(seen.canary_n)
    assert noisy[0] < plain[0]
    assert noisy[1] == plain[1] <= seen.baseline_n * (1 + 1e-9)


def test_evidence_counts_what_is_compared_and_nothing_else() -> None:
    arm = ArmSums(5, {"itl": Tally(5, 1.0), "errors": Tally(5, 1.0), "ttft": Tally(5, 1.0)})
    seen = no_evidence({"itl": 0.05, "errors": 0.005}).fold(Interval(1, arm, arm))
    assert seen.requests == 5
    assert seen.ratios.keys() == {"itl"}
    assert seen.shares.keys() == {"errors"}
    assert seen.ratios["itl"].canary_n == seen.shares["errors"].canary_n == 5
