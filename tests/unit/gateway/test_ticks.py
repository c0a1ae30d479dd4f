"""The law of ticks: loops of one process, whatever their periods, wake it no more often than the one with the shortest period does."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ticks import SOON, next_tick, to_next_tick, until_tick

PERIODS = (0.25, 0.5, 1.0, 2.0)
moments = st.floats(0.0, 1e6)
phases = st.floats(0.0, 0.25)


@given(moments, phases, st.sampled_from(PERIODS))
def test_a_sleep_is_a_period_long_within_a_tenth_of_one(now: float, phase_s: float, period_s: float) -> None:
    slept_s = until_tick(now, period_s, phase_s)
    assert SOON * period_s < slept_s <= (1 + SOON) * period_s
    assert until_tick(now + slept_s, period_s, phase_s) == pytest.approx(period_s, abs=1e-6)


@given(moments, phases, st.lists(st.tuples(st.sampled_from(PERIODS), st.floats(0.0, 3.0)), min_size=1, max_size=12))
def test_loops_that_begin_at_any_moment_wake_the_process_four_times_a_second_together(
    began_at: float, phase_s: float, loops: list[tuple[float, float]]
) -> None:
    woken: set[int] = set()
    for period_s, after_s in loops:
        now = began_at + after_s
        while now < began_at + 10.0:
            now += until_tick(now, period_s, phase_s)
            woken.add(round((now - phase_s) * 1000))
    assert len(woken) <= 10 * 4 + 3 * 4 + 1, "ten seconds, and the periods that begin within them"


@given(moments, phases, st.sampled_from(PERIODS), st.floats(-0.002, 0.0))
def test_a_timer_that_ends_early_does_not_wake_the_process_twice(now: float, phase_s: float, period_s: float, early_s: float) -> None:
    woken = now + until_tick(now, period_s, phase_s) + early_s
    assert until_tick(woken, period_s, phase_s) == pytest.approx(period_s - early_s, abs=1e-6)


async def test_loops_of_a_process_wake_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("gateway.ticks.asyncio.sleep", sleep)
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    for period_s in PERIODS:
        await next_tick(period_s)
    quarters = [(seconds - slept[0]) / 0.25 for seconds in slept]
    assert quarters == pytest.approx([round(quarter) for quarter in quarters], abs=1e-6), "every tick is one of the shortest period too"
    assert to_next_tick(0.25) == slept[0], "the phase of a process stays"


def test_a_loop_without_a_period_sleeps_for_one_turn() -> None:
    assert until_tick(1.0, 0.0, 0.1) == 0.0
