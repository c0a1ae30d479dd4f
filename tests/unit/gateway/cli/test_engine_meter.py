"""Measuring an engine: a virtual engine of known speed is found again, and what cannot be measured is said."""

import threading

import pytest

from backends.simengine.settings import PRESETS
from gateway.cli.engine_meter import BATCH_TOKENS, MeterFault, TimedStream, measured, plan_for, step_of
from routing.profile import error_share, fitted_rates
from routing.rates import PRIORS, Rates

TIMING = PRESETS["h100-8b"]
TRUTH = Rates(TIMING.c0, TIMING.c1, TIMING.c1a, TIMING.c0, TIMING.c2, TIMING.c3)


class VirtualEngine:
    """Answers with the times that the simulated engine's formula gives; streams that are asked for by several threads decode together."""

    def __init__(self, cached: int = 0) -> None:
        self._cached = cached
        self._lock = threading.Lock()
        self.asked: list[int] = []

    def stream(self, prompt_tokens: int, output_tokens: int) -> TimedStream:
        with self._lock:
            self.asked.append(prompt_tokens)
        batch = max(1, (output_tokens - BATCH_TOKENS) // 2) if output_tokens > BATCH_TOKENS else 1
        at, times, done = 0.0, list[float](), 0
        while done < prompt_tokens:
            chunk = min(2048, prompt_tokens - done)
            at += TIMING.step_ms([(chunk, done + chunk // 2)], 0, 0) / 1e3
            done += chunk
        for number in range(output_tokens):
            times.append(at)
            at += TIMING.step_ms([], batch, batch * (prompt_tokens + number + 1)) / 1e3
        return TimedStream(0.0, times, prompt_tokens, output_tokens, self._cached)


def test_the_speed_of_a_known_engine_is_found_within_two_per_cent() -> None:
    said: list[str] = []
    plan = plan_for(8192, 16)
    prompts, steps = measured(VirtualEngine(), plan, lambda: False, said.append)
    found = fitted_rates(prompts, steps)
    assert len(said) == plan.points
    assert [rate * 1e3 for rate in found] == pytest.approx(list(TRUTH), rel=0.02)
    assert error_share(found, prompts) < 0.01
    assert PRIORS["h100-8b"] == pytest.approx(found, rel=0.02)


def test_when_the_time_is_over_three_measurements_of_each_kind_are_made_all_the_same() -> None:
    prompts, steps = measured(VirtualEngine(), plan_for(8192, 16), lambda: True, lambda _: None)
    assert (len(prompts), len(steps)) == (3, 3)
    assert {point.tokens for point in prompts} == {256, 2048, 8192}
    assert not any(point.held_out for point in prompts)
    assert fitted_rates(prompts, steps)


def test_a_prompt_that_was_cached_measures_nothing() -> None:
    with pytest.raises(MeterFault, match="random prompt in its prefix cache"):
        measured(VirtualEngine(cached=1000), plan_for(4096, 4), lambda: False, lambda _: None)


def test_a_step_is_that_of_the_time_when_all_decode() -> None:
    first = TimedStream(0.0, [1.0 + 0.1 * n for n in range(30)], 100, 30, 0)
    second = TimedStream(0.0, [2.0 + 0.1 * n for n in range(30)], 100, 30, 0)
    step = step_of([first, second])
    assert step is not None
    assert (step.sequences, step.seconds) == (2, pytest.approx(0.1))
    assert step_of([first, TimedStream(0.0, [3.5 + 0.1 * n for n in range(30)], 100, 30, 0)]) is None
    several = step_of([TimedStream(0.0, [0.4 * n for n in range(10)], 100, 40, 0)])
    assert several is not None
    assert several.seconds == pytest.approx(0.1), "events of four tokens"


@pytest.mark.parametrize(("longest", "sequences"), [(64, 1), (4096, 16), (100_000, 128)])
def test_a_plan_has_enough_of_each_kind(longest: int, sequences: int) -> None:
    plan = plan_for(longest, sequences)
    assert len(plan.prompts) >= 3
    assert len(set(plan.prompts)) == len(plan.prompts)
    assert max(plan.prompts) == longest
    assert max(size for size, _ in plan.batches) <= sequences
    assert not set(plan.held_out) & set(plan.prompts)
