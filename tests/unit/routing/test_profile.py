"""Profiles: the fit finds the rates that made the times, and every rate can be a prior."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.calibration import BOUND
from routing.profile import (
    EngineProfile,
    PromptPoint,
    StepPoint,
    error_share,
    fitted,
    fitted_rates,
    profile_text,
    read_profile,
    step_s,
    ttft_s,
)
from routing.rates import PRIORS, Rates

LENGTHS = (64, 256, 1024, 4096, 16384)
BATCHES = tuple((size, size * context) for size in (1, 4, 16) for context in (128, 2048))


def points(rates: Rates, noise: float = 0.0) -> tuple[list[PromptPoint], list[StepPoint]]:
    sign = [1 + noise * (-1) ** place for place in range(len(BATCHES))]
    prompts = [PromptPoint(length, ttft_s(rates, length) * sign[place]) for place, length in enumerate(LENGTHS)]
    prompts.append(PromptPoint(700, ttft_s(rates, 700), held_out=True))
    return prompts, [StepPoint(size, tokens, step_s(rates, size, tokens) * sign[place]) for place, (size, tokens) in enumerate(BATCHES)]


@pytest.mark.parametrize("name", sorted(PRIORS))
def test_the_rates_that_made_the_times_are_found_again(name: str) -> None:
    prompts, steps = points(PRIORS[name])
    found = fitted_rates(prompts, steps)
    assert ttft_s(found, 700) == pytest.approx(ttft_s(PRIORS[name], 700), rel=0.011)
    assert step_s(found, 8, 8000) == pytest.approx(step_s(PRIORS[name], 8, 8000), rel=0.011)
    if name == "h100-8b":  # every rate is above its floor
        assert found == pytest.approx(PRIORS[name], rel=1e-6)
    assert error_share(found, prompts) < 0.011


def test_times_that_are_five_per_cent_off_predict_within_ten() -> None:
    prompts, steps = points(PRIORS["h100-8b"], 0.05)
    found = fitted_rates(prompts, steps)
    for length in (100, 700, 3000, 10_000):
        assert ttft_s(found, length) == pytest.approx(ttft_s(PRIORS["h100-8b"], length), rel=0.1)


@given(st.lists(st.tuples(st.just(1.0), st.floats(1, 1e5), st.floats(1, 1e9), st.floats(1e-4, 1e3)), min_size=3, max_size=12))
def test_no_rate_is_so_small_that_a_calibration_could_never_raise_it(rows: list[tuple[float, float, float, float]]) -> None:
    least = min(row[3] for row in rows)
    for column, rate in enumerate(fitted(rows)):
        largest = max(row[column] for row in rows)
        assert rate * largest * BOUND >= least * 0.49


def test_too_few_measurements_are_refused() -> None:
    prompts, steps = points(PRIORS["h100-8b"])
    with pytest.raises(ValueError, match="three measurements at least are needed, and there are 2"):
        fitted_rates(prompts[:2], steps)


def test_a_profile_is_read_back_and_what_is_none_is_named() -> None:
    prompts, steps = points(PRIORS["h100-8b"])
    profile = EngineProfile(
        engine="vllm", served="m", measured_unix=1.0, rates=PRIORS["h100-8b"]._asdict(), prompts=prompts, steps=steps, kv_tokens=9
    )
    assert read_profile(profile_text(profile)) == profile
    assert profile.prior == PRIORS["h100-8b"]
    for text in ("{}", "[", '{"rates": {}}', profile_text(profile).replace('"step_s":0.0065', '"step_s":0')):
        with pytest.raises(ValueError, match="is no profile of `tidegate engine profile`"):
            read_profile(text)
