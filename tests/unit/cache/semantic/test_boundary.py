"""The boundary of one answer: laws of the fit and of its bound."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.boundary import Prior, Sample, at_rest, fit, sigmoid

PRIOR = Prior(0.0, 1.0, 1.0, 4.0)
SAMPLES = st.lists(
    st.builds(Sample, st.floats(-30, 30), st.booleans(), st.floats(0, 1)),
    max_size=64,
)


def test_what_was_never_observed_has_its_prior() -> None:
    assert fit([], PRIOR) == at_rest(PRIOR)
    assert at_rest(PRIOR).logit(2.0) == 2.0
    assert at_rest(PRIOR).deviation(2.0) == (1 + 4 / 4) ** 0.5


@given(SAMPLES)
def test_the_fit_is_where_the_gradient_is_zero(samples: list[Sample]) -> None:
    line = fit(samples, PRIOR)
    g0 = PRIOR.intercept_precision * (PRIOR.intercept - line.intercept)
    g1 = PRIOR.slope_precision * (PRIOR.slope - line.slope)
    for score, right, weight in samples:
        off = weight * (right - sigmoid(line.logit(score)))
        g0, g1 = g0 + off, g1 + off * score
    assert abs(g0) < 0.05
    assert abs(g1) < 0.05


@given(SAMPLES, st.floats(-30, 30))
def test_observations_only_narrow_the_bound(samples: list[Sample], score: float) -> None:
    line = fit(samples, PRIOR)
    assert line.assured(score) <= line.logit(score)
    assert line.deviation(score) <= at_rest(PRIOR).deviation(score) + 1e-9


@given(SAMPLES, st.floats(-5, 5))
def test_a_right_answer_raises_and_a_wrong_one_lowers(samples: list[Sample], score: float) -> None:
    before = fit(samples, PRIOR).logit(score)
    assert fit([*samples, Sample(score, True)], PRIOR).logit(score) >= before - 1e-4
    assert fit([*samples, Sample(score, False)], PRIOR).logit(score) <= before + 1e-4


def test_a_known_boundary_is_found() -> None:
    chance = Random(3)
    scores = [chance.uniform(-6, 6) for _ in range(4000)]
    samples = [Sample(score, chance.random() < sigmoid(2 * score - 1)) for score in scores]
    line = fit(samples, Prior(0.0, 1.0, 1e-3, 1e-3))
    assert abs(line.intercept + 1) < 3 * line.var_intercept**0.5
    assert abs(line.slope - 2) < 3 * line.var_slope**0.5


def test_separate_classes_have_a_finite_boundary_between_them() -> None:
    samples = [Sample(score, score > 1) for score in (-2.0, -1.0, 0.0, 0.5, 1.5, 2.0, 3.0, 4.0)]
    line = fit(samples, Prior(0.0, 1.0, 0.1, 0.1))
    assert 0.5 < -line.intercept / line.slope < 1.5
    assert line.deviation(1.0) > 0


def test_sigmoid_has_no_overflow() -> None:
    assert sigmoid(-1e4) == 0
    assert sigmoid(1e4) == 1
