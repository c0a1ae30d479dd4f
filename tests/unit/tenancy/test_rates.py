"""Laws of rates and of the calendar."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits import MAX_AMOUNT, MAX_RATE, MINUTE_US, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.rates import DAY, DAY_US, MAX_AHEAD_US, MAX_COUNT, MONTH, Calendar, Prepared, compile_line, cost_us, left_of_rate, room_us

RATES = st.integers(1, MAX_RATE)


def rate(amount: int, burst: int | None = None) -> Limit:
    return Limit(Scope(Level.TENANT, "t"), Meter.TOKENS, Window.MINUTE, amount, burst=burst)


@given(RATES, RATES)
def test_a_cost_is_rounded_up_and_exact_to_lua(n: int, amount: int) -> None:
    cost = cost_us(n, amount)
    assert (cost - 1) * amount < n * MINUTE_US <= cost * amount
    # the twin divides doubles
    assert n * MINUTE_US <= MAX_COUNT
    assert -int(-(float(n * MINUTE_US) / amount) // 1) == cost


@given(RATES, RATES, st.integers(0, 2 * MAX_AHEAD_US))
def test_what_is_left_is_the_most_that_passes(amount: int, burst: int, ahead_us: int) -> None:
    line = compile_line(line_of(rate(amount, burst), 0.0))
    left = left_of_rate(line, ahead_us)
    assert 0 <= left <= burst
    if left:
        assert ahead_us + cost_us(left, amount) <= line.burst_us
    if left < burst:
        assert ahead_us + cost_us(left + 1, amount) > line.burst_us


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)))
def test_periods_are_those_of_the_calendar(at: datetime) -> None:
    at = at.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    calendar = Calendar()
    calendar.turn_to((at - epoch) // timedelta(microseconds=1))
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
    assert calendar.periods[DAY] == (at - epoch).days
    assert calendar.periods[MONTH] == at.year * 12 + at.month - 1
    assert calendar.ends_us[DAY] == (midnight + timedelta(days=1) - epoch) // timedelta(microseconds=1)
    assert calendar.ends_us[MONTH] == (next_month - epoch) // timedelta(microseconds=1)


def test_the_calendar_follows_time_over_midnight() -> None:
    calendar = Calendar()
    calendar.turn_to(20_000 * DAY_US - 1)
    before = calendar.periods[DAY]
    calendar.turn_to(20_000 * DAY_US)
    assert (before, calendar.periods[DAY]) == (19_999, 20_000)


def test_plans_are_made_once_and_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenancy.rates.AT_MOST", 10)
    prepared = Prepared()
    limit = Limit(Scope(Level.USER, "t"), Meter.TOKENS, Window.DAY, MAX_AMOUNT)
    first = Group("t", (line_of(limit, 0.0, "a"),))
    assert prepared.plan(first) is prepared.plan(first)
    for n in range(100):
        group = Group("t", (line_of(limit, 0.0, str(n)),))
        assert prepared.plan(group).lines[0].line is group.lines[0]
    assert len(prepared.plans) <= 10


@pytest.mark.req("R6")
@given(st.integers(1, 7_745))
def test_exactly_as_many_single_ones_pass_as_the_limit_says(amount: int) -> None:
    each, room = cost_us(1, amount), room_us(amount, amount)
    assert amount * each <= room < (amount + 1) * each


@pytest.mark.req("R7")
@given(st.integers(1, 10**8), st.integers(1, 10**8), st.lists(st.integers(1, 10**7), min_size=1, max_size=40))
def test_nothing_passes_beyond_the_burst_however_it_is_cut(amount: int, burst: int, parts: list[int]) -> None:
    ahead, passed = 0, 0
    for part in parts:
        if part <= burst and ahead + cost_us(part, amount) <= room_us(burst, amount):
            ahead += cost_us(part, amount)
            passed += part
    assert passed <= burst or amount > 60_000_000
