"""Measuring an engine: a virtual engine of known speed is found again, and what cannot be measured is said."""

import threading

import pytest

from backends.signals import Signals
from backends.simengine.settings import PRESETS
from gateway.cli.engine_meter import BATCH_TOKENS, MeterFault, TimedStream, measured, plan_for, step_of, tokens_of_others
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


class HeldBack:
    """An engine of 5 ms a step on a busy machine: every third batch gets its tokens all at once, when they are all there."""

    def __init__(self, step_s: float = 0.005, every: int = 3) -> None:
        self._step_s = step_s
        self._every = every
        self._batches = 0
        self.most_tokens = 0

    def stream(self, prompt_tokens: int, output_tokens: int) -> TimedStream:
        self.most_tokens = max(self.most_tokens, prompt_tokens + output_tokens)
        self._batches += output_tokens > 4
        held = self._batches % self._every == 0
        times = [1.0 + self._step_s * (output_tokens if held else number) + 1e-5 * number for number in range(output_tokens)]
        return TimedStream(0.99, times, prompt_tokens, output_tokens, 0)


def test_tokens_that_came_in_a_burst_measure_no_step() -> None:
    _, steps = measured(HeldBack(), plan_for(1024, 1), lambda: False, lambda _: None)
    assert [point.seconds for point in steps] == pytest.approx([0.005] * 3, rel=0.01)


def test_an_engine_whose_tokens_all_come_in_bursts_has_no_step() -> None:
    with pytest.raises(MeterFault, match="together in only 0 batches of 3"):
        measured(HeldBack(every=1), plan_for(1024, 1), lambda: False, lambda _: None)


def test_answers_grow_until_they_decode_together_for_long_enough_and_never_beyond_the_context() -> None:
    engine = HeldBack(step_s=0.0001)
    measured(engine, plan_for(1024, 1), lambda: False, lambda _: None)
    assert engine.most_tokens == 512 + 50 * 16
    engine = HeldBack(step_s=0.0001)
    measured(engine, plan_for(1024, 1, context=1100), lambda: False, lambda _: None)
    assert engine.most_tokens <= 1100


def test_a_batch_takes_half_of_the_kv_cache_at_most() -> None:
    assert (16, 4096) in plan_for(8192, 16).batches
    assert max(size * prompt for size, prompt in plan_for(8192, 16, kv_tokens=32_768).batches) == 16_384
    assert len(plan_for(8192, 16, kv_tokens=100).batches) == 3


class Apart(VirtualEngine):
    """Batches of more than one sequence do not decode together, until so many of their streams were asked for.

    Args:
        streams: None for never.
    """

    def __init__(self, streams: int | None) -> None:
        super().__init__()
        self._left = streams

    def stream(self, prompt_tokens: int, output_tokens: int) -> TimedStream:
        answer = super().stream(prompt_tokens, output_tokens)
        if output_tokens == BATCH_TOKENS + 2 or output_tokens < BATCH_TOKENS or self._left == 0:
            return answer
        self._left = None if self._left is None else self._left - 1
        return answer._replace(tokens_at=answer.tokens_at[:1])


def test_batches_that_say_nothing_are_made_up_for_when_the_time_is_over() -> None:
    # the first batch of four, with three tries
    _, steps = measured(Apart(streams=3 * 4), plan_for(8192, 4), lambda: True, lambda _: None)
    assert [point.sequences for point in steps] == [1, 2, 1]


def test_batches_that_were_held_up_are_measured_again_where_there_are_too_few() -> None:
    # both batches of two, with three tries each of two streams
    _, steps = measured(Apart(streams=2 * 3 * 2), plan_for(8192, 2), lambda: False, lambda _: None)
    assert [point.sequences for point in steps] == [1, 1, 2]


def test_an_engine_whose_streams_never_decode_together_is_named() -> None:
    with pytest.raises(MeterFault, match=r"together in only 2 batches of 4, and three are needed; let nothing else use its machine"):
        measured(Apart(streams=None), plan_for(8192, 2), lambda: False, lambda _: None)


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
    assert len(plan.batches) >= 3
    assert not set(plan.held_out) & set(plan.prompts)


@pytest.mark.parametrize(
    ("before", "after", "others"),
    [
        ({"generated_tokens": 500}, {"generated_tokens": 1500}, 0),
        ({"generated_tokens": 500}, {"generated_tokens": 1564}, 0),
        ({"generated_tokens": 500}, {"generated_tokens": 1565}, 65),
        ({"generated_tokens": 500, "prefill_tokens": 100}, {"generated_tokens": 1565, "prefill_tokens": 21_100}, 65),
        ({"generated_tokens": 500, "prefill_tokens": 100}, {"generated_tokens": 1500, "prefill_tokens": 21_101}, 1001),
        ({"generated_tokens": 500}, {"generated_tokens": 1400}, 0),
        ({}, {"generated_tokens": 9000}, 0),
        ({"generated_tokens": 9000}, {}, 0),
    ],
)
def test_tokens_beyond_those_of_the_measurement_are_those_of_others(before: dict[str, int], after: dict[str, int], others: int) -> None:
    """A difference of counting is up to a twentieth of prompts of 20,000 tokens, which is 1,000, and up to 64 of answers of 1,000."""
    mine = [TimedStream(0.0, [1.0], 2000, 100, 0)] * 10
    assert tokens_of_others(mine, Signals(0.0, **before), Signals(1.0, **after)) == others
