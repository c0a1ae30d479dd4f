"""Several readings together: a rate is of the engine's own counters, and what was sent since is not forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.signals import MEASURED_BUSY_S, EngineLoadNow, PrefillRate, Signals, measured, standing


def reading(tokens: int | None, busy_s: float | None, **other: object) -> Signals:
    return Signals(read_at=0.0, prefill_tokens=tokens, prefill_busy_s=busy_s, **other)  # type: ignore[arg-type]  # by name


def rate(*readings: Signals) -> float | None:
    known: PrefillRate | None = None
    for one in readings:
        known = measured(known, one)
    assert known is not None
    return known.tokens_per_s


def test_a_rate_is_tokens_over_busy_time() -> None:
    assert rate(reading(1000, 1.0)) is None
    assert rate(reading(1000, 1.0), reading(5000, 3.0)) == 2000.0


def test_short_prefills_are_added_up_before_they_make_a_rate() -> None:
    few = [reading(100 * i, 0.05 * i) for i in range(4)]
    assert rate(*few) is None
    assert rate(*few, reading(400, MEASURED_BUSY_S)) == pytest.approx(2000)


def test_an_idle_engine_keeps_its_rate() -> None:
    assert rate(reading(0, 0.0), reading(900, 0.3), *[reading(900, 0.3)] * 50) == pytest.approx(3000)


@pytest.mark.req("R43")
def test_a_restart_forgets_the_rate_and_measures_anew() -> None:
    before = [reading(10_000, 5.0), reading(20_000, 10.0)]
    assert rate(*before) == 2000.0
    assert rate(*before, reading(10, 0.1)) is None
    assert rate(*before, reading(10, 0.1), reading(3010, 1.1)) == pytest.approx(3000)
    assert rate(*(reading(1000 * i, 1.0 * i, started_unix=10.0) for i in (1, 2)), reading(9000, 9.0, started_unix=99.0)) is None


def test_an_engine_that_tells_no_busy_time_has_no_rate() -> None:
    assert rate(reading(0, None), reading(10**6, None)) is None


def test_a_reading_that_lost_its_counters_changes_nothing() -> None:
    assert rate(reading(0, 0.0), reading(2000, 1.0), reading(None, None), reading(2000, 1.0)) == 2000.0


@pytest.mark.parametrize(
    ("read", "sent", "ended", "now"),
    [
        ((3, 0), 2, 0, (5, 0)),  # nobody waits: what comes joins the batch
        ((8, 4), 5, 0, (8, 9)),  # the batch is full: what comes waits
        ((8, 4), 0, 3, (8, 1)),  # what ends lets the queue move up
        ((8, 4), 0, 6, (6, 0)),
        ((1, 0), 0, 5, (0, 0)),  # ended before the engine had counted them
    ],
)
def test_a_reading_is_brought_up_to_date(read: tuple[int, int], sent: int, ended: int, now: tuple[int, int]) -> None:
    assert standing(Signals(read_at=0.0, running=read[0], waiting=read[1]), sent, ended) == EngineLoadNow(*now)


@pytest.mark.req("ROUTERS-5")
@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 50), st.integers(0, 50))
def test_everything_sent_counts_somewhere_and_nothing_below_zero(running: int, waiting: int, sent: int, ended: int) -> None:
    now = standing(Signals(read_at=0.0, running=running, waiting=waiting), sent, ended)
    assert now.running is not None
    assert now.waiting is not None
    assert now.running + now.waiting == max(0, running + waiting + sent - ended)
    assert min(now.running, now.waiting) >= 0


@pytest.mark.req("ROUTERS-6")
def test_unknown_stays_unknown_however_much_was_sent() -> None:
    assert standing(Signals(read_at=0.0, running=4, missing=("waiting",)), 9, 0) == EngineLoadNow(4, None)
    assert standing(Signals(read_at=0.0), 9, 0) == EngineLoadNow(None, None)


def test_there_are_never_fewer_than_this_gateways_own() -> None:
    assert standing(Signals(read_at=0.0, running=0, waiting=0), 0, 0, in_flight=3) == EngineLoadNow(3, 0)
    assert standing(Signals(read_at=0.0, running=4, waiting=2), 0, 9, in_flight=5) == EngineLoadNow(4, 1)
    assert standing(Signals(read_at=0.0, running=8, waiting=2), 1, 0, in_flight=5) == EngineLoadNow(8, 3)
    assert standing(Signals(read_at=0.0, waiting=2), 1, 0, in_flight=5) == EngineLoadNow(None, 2)
