import random
from collections.abc import Callable
from math import inf, nan

import pytest

from routing.calibration import BOUND, Calibration
from routing.rates import PRIORS, UNKNOWN_RATES, Rates

TRUE = Rates(0.01, 5e-5, 1.6e-9, 0.013, 4e-5, 1e-7)
"""Half as fast as what is believed of a backend that nobody knows."""


def ttft(rates: Rates, uncached: float, ctx: float, queued: float) -> float:
    return rates.prefill_s + rates.prefill_s_token * (uncached + queued) + rates.prefill_s_token_ctx * uncached * ctx


def step(rates: Rates, sequences: float, tokens: float) -> float:
    return rates.step_s + rates.step_s_seq * sequences + rates.step_s_token * tokens


def teach(
    calibration: Calibration, samples: int, truth: Rates = TRUE, *, seed: int = 1, spoil: Callable[[int, float], float] = lambda at, s: s
) -> None:
    rng = random.Random(seed)
    for at in range(samples):
        uncached, cached, queued = rng.expovariate(1 / 3000), rng.choice([0, 0, 8000]), rng.choice([0, 0, rng.expovariate(1 / 10_000)])
        ctx = cached + uncached / 2
        calibration.first_token(uncached, ctx, queued, spoil(at, ttft(truth, uncached, ctx, queued) * rng.lognormvariate(0, 0.15)))
        sequences, tokens = rng.randrange(1, 120), rng.randrange(1000, 300_000)
        calibration.step(sequences, tokens, spoil(at, step(truth, sequences, tokens) * rng.lognormvariate(0, 0.1)))


def error(calibration: Calibration, truth: Rates = TRUE) -> float:
    """The worst relative error of what it predicts for requests of many kinds."""
    worst = 0.0
    for uncached, ctx, queued in ((500, 250, 0), (4000, 2000, 0), (4000, 10_000, 20_000), (30_000, 15_000, 0)):
        worst = max(worst, abs(ttft(calibration.rates, uncached, ctx, queued) / ttft(truth, uncached, ctx, queued) - 1))
    for sequences, tokens in ((1, 2000), (60, 150_000), (120, 300_000)):
        worst = max(worst, abs(step(calibration.rates, sequences, tokens) / step(truth, sequences, tokens) - 1))
    return worst


def test_it_starts_from_the_prior() -> None:
    assert Calibration().rates == pytest.approx(UNKNOWN_RATES)
    assert Calibration(PRIORS["h100-70b-tp4"]).rates == pytest.approx(PRIORS["h100-70b-tp4"])


@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_samples_find_out_that_it_is_half_as_fast(seed: int) -> None:
    calibration = Calibration()
    teach(calibration, 100, seed=seed)
    assert error(calibration) < 0.2
    assert 60 <= calibration.samples <= 100, "a third has more in front of it than it is long itself"


def test_the_residual_is_what_nine_of_ten_are_wrong_by_at_most() -> None:
    calibration, rng, wrong = Calibration(), random.Random(6), []
    for _ in range(2000):
        seconds = ttft(UNKNOWN_RATES, 4000, 2000, 0) * rng.lognormvariate(0, 0.3)
        wrong.append(abs(seconds - ttft(calibration.rates, 4000, 2000, 0)))
        calibration.first_token(4000, 2000, 0, seconds)
    assert calibration.residual_p90_s == pytest.approx(sorted(wrong)[1800], rel=0.5)
    assert calibration.residual_s == pytest.approx(calibration.residual_p90_s / 1.645)


def test_outliers_teach_little() -> None:
    calibration = Calibration()
    teach(calibration, 300, spoil=lambda at, seconds: 60.0 if at % 25 == 24 else seconds)
    assert error(calibration) < 0.35


def test_a_change_of_speed_is_followed() -> None:
    calibration = Calibration()
    teach(calibration, 300, UNKNOWN_RATES)
    assert error(calibration, UNKNOWN_RATES) < 0.1
    teach(calibration, 200, TRUE, seed=2)
    assert error(calibration) < 0.2


def test_rates_stay_positive_and_bounded_whatever_is_told() -> None:
    calibration, rng = Calibration(), random.Random(4)
    for _ in range(2000):
        calibration.first_token(rng.choice([0, 1, 1e6]), rng.choice([0, 1e5]), rng.choice([0, 1e7]), rng.choice([0.0, 1e-9, 1e4]))
        calibration.step(rng.choice([0, 500]), rng.choice([0, 1e6]), rng.choice([0.0, 100.0]))
    for learned, prior in zip(calibration.rates, UNKNOWN_RATES, strict=True):
        assert prior / BOUND * 0.999 <= learned <= prior * BOUND * 1.001


def test_what_cannot_be_is_passed_over() -> None:
    calibration = Calibration()
    for wrong in (nan, inf, -1.0):
        calibration.first_token(100, 50, 0, wrong)
        calibration.step(wrong, 100, 0.01)
    assert (calibration.rates, calibration.samples) == (pytest.approx(UNKNOWN_RATES), 0)


def test_what_decode_steps_took_is_not_learned_as_the_price_of_tokens() -> None:
    calibration = Calibration()
    rng = random.Random(1)
    for _ in range(400):
        uncached, steps_s = rng.uniform(100, 8000), rng.uniform(0.0, 0.5)
        seconds = ttft(UNKNOWN_RATES, uncached, uncached / 2, 0)
        calibration.first_token(uncached, uncached / 2, 0, seconds + steps_s, 0.0, steps_s)
    assert calibration.rates == pytest.approx(UNKNOWN_RATES, rel=0.02)


def test_a_sample_that_is_mostly_about_others_teaches_nothing_after_the_first() -> None:
    calibration = Calibration()
    teach(calibration, 200)
    before = calibration.rates
    for _ in range(100):
        calibration.first_token(500, 250, 20_000, 9.0)
        calibration.first_token(500, 250, 0, 9.0, 0.0, 5.0)
        calibration.step(10, 10_000, 9.0, 8.0)
    assert calibration.rates == before


def test_prompts_in_the_same_steps_are_not_learned_as_decoding() -> None:
    calibration = Calibration()
    rng = random.Random(2)
    for _ in range(400):
        sequences, prompts_s = rng.uniform(1, 60), rng.uniform(0.0, 0.01)
        ctx = sequences * 1500
        calibration.step(sequences, ctx, step(UNKNOWN_RATES, sequences, ctx) + prompts_s, prompts_s)
    for sequences in (1, 30, 60):
        assert step(calibration.rates, sequences, sequences * 1500) == pytest.approx(
            step(UNKNOWN_RATES, sequences, sequences * 1500), rel=0.05
        )


def test_the_same_sample_for_ever_does_not_unlearn_the_rest() -> None:
    calibration = Calibration()
    teach(calibration, 200)
    for _ in range(5000):
        calibration.first_token(1000, 500, 0, ttft(TRUE, 1000, 500, 0))
        calibration.step(1, 2000, step(TRUE, 1, 2000))
    assert error(calibration) < 0.35
