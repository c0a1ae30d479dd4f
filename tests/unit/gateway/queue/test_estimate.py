from math import inf

import pytest

from gateway.queue.estimate import ENOUGH, FORGOTTEN_S, GRAIN, TAU_S, DrainRate
from routing.fair_queue import Ahead


def steady(rate: DrainRate, tokens: float, every_s: float, until: float, now: float = 0.0) -> float:
    rate.busy(now)
    while now < until:
        now += every_s
        rate.dispatched(tokens, now)
    return now


def test_a_steady_pace_is_measured() -> None:
    rate = DrainRate()
    now = steady(rate, 500.0, 0.5, 60.0)
    assert rate.per_second(now) == pytest.approx(1000.0, rel=0.05)


def test_nothing_is_said_before_a_few_were_let_through() -> None:
    rate = DrainRate()
    rate.busy(0.0)
    for at in range(ENOUGH):
        assert rate.per_second(1.0 + at) == 0.0
        rate.dispatched(100.0, 1.0 + at)
    assert rate.per_second(1.0 + ENOUGH) > 0.0


def test_time_in_which_nobody_waits_does_not_count() -> None:
    rate = DrainRate()
    now = steady(rate, 500.0, 0.5, 60.0)
    rate.idle(now)
    rate.idle(now + 20.0)
    rate.busy(now + FORGOTTEN_S)
    assert rate.per_second(now + FORGOTTEN_S) == pytest.approx(1000.0, rel=0.05)


def test_what_was_measured_long_ago_is_not_believed() -> None:
    rate = DrainRate()
    now = steady(rate, 500.0, 0.5, 60.0)
    rate.idle(now)
    rate.busy(now + FORGOTTEN_S + 1.0)
    assert rate.per_second(now + FORGOTTEN_S + 1.0) == 0.0


def test_it_falls_while_somebody_waits_and_nobody_is_let_through_and_follows_a_new_pace() -> None:
    rate = DrainRate()
    now = steady(rate, 500.0, 0.5, 60.0)
    assert rate.per_second(now + TAU_S) == pytest.approx(1000.0 / 2.718, rel=0.15)
    now = steady(rate, 1500.0, 0.5, now + TAU_S * 6, now + TAU_S)
    assert rate.per_second(now) == pytest.approx(3000.0, rel=0.05)


def ahead(above: int = 0, own: int = 0, until: float = inf) -> Ahead:
    return Ahead(above, own, 0, until)


def loaded(higher: float) -> tuple[DrainRate, float]:
    """A pool that lets 1,000 tokens a second through for a minute, while that many a second come into rank 0."""
    rate, now = DrainRate(), 0.0
    rate.busy(now)
    while now < 60.0:
        now += 0.5
        rate.joined(0, higher / 2, now)
        rate.dispatched(500.0, now)
    return rate, now


def test_what_comes_into_higher_ranks_is_not_left_for_lower_ones() -> None:
    rate, now = loaded(750.0)
    assert rate.wait_s(0, ahead(own=5000), now, 3600.0) == pytest.approx(5.0, rel=0.05)
    assert rate.wait_s(2, ahead(above=2000, own=3000), now, 3600.0) == pytest.approx(20.0, rel=0.05)


def test_who_is_left_nothing_waits_for_the_share_of_the_lower_ranks() -> None:
    rate, now = loaded(1100.0)
    assert rate.wait_s(2, ahead(above=2000, own=3000, until=60_000), now, 3600.0) == pytest.approx(60.0, rel=0.05)
    assert rate.wait_s(2, ahead(above=2000, own=3000), now, 3600.0) == 3600.0


def test_who_leaves_unserved_is_not_waited_for() -> None:
    rate, now = loaded(750.0)
    for _ in range(60):
        now += 0.5
        rate.joined(0, 375.0, now)
        rate.left(0, 375.0)
        rate.dispatched(500.0, now)
    rate.left(0, 1e9)
    assert rate.wait_s(2, ahead(own=5000), now, 3600.0) == pytest.approx(5.0, rel=0.05)


def test_who_begins_a_busy_time_says_nothing_of_how_many_come_in_it() -> None:
    """One that comes each second, alone, has all of the pool while it waits, and leaves most of it to others."""
    rate, now = DrainRate(), 0.0
    for _ in range(100):
        now += 1.0
        rate.joined(0, 100.0, now)
        rate.busy(now)
        rate.dispatched(100.0, now + 0.1)
        rate.idle(now + 0.1)
    rate.busy(now + 1.0)
    assert rate.wait_s(2, ahead(own=1000), now + 1.0, 3600.0) == pytest.approx(1.0, rel=0.05)


def test_a_stall_is_expected_to_last_as_long_again() -> None:
    rate, now = loaded(0.0)
    assert rate.wait_s(0, ahead(own=100), now + 3.0, 3600.0) == pytest.approx(3.0)
    rate.idle(now + 3.0)
    rate.busy(now + 9.0)
    assert rate.wait_s(0, ahead(own=100), now + 9.0, 3600.0) < 0.5
    fresh = DrainRate()
    fresh.busy(0.0)
    assert (fresh.per_second(2.0), fresh.wait_s(0, ahead(own=100), 2.0, 3600.0)) == (0.0, 2.0), "which is known before any pace is"
    fresh.idle(2.0)
    assert fresh.wait_s(0, ahead(own=100), 9.0, 3600.0) == 0.0, "and not counted while nobody could be let through"


def test_no_prediction_is_finer_than_the_time_between_two() -> None:
    rate, now = loaded(0.0)
    assert rate.grain_s() == pytest.approx(GRAIN * 0.5, rel=0.05)
    assert DrainRate().grain_s() == 0.0
    assert DrainRate().wait_s(0, ahead(own=100), now, 3600.0) == 0.0
