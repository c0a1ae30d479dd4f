"""Forecasts of budgets: the pace is the spend of a week and a bit, and the forecast follows the calendar of the limit."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.forecast import PACE_DAYS, Forecast, first_day_of_pace, forecast, pace_per_day
from tenancy.limits import Level, Limit, LimitWindow, Meter, Rolling, Scope, Window
from tenancy.money import NANO

DAY_S = 86_400
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC).timestamp()
"""Nine and a half days before the end of November."""
TODAY = dt.date(2026, 11, 21)


def budget(window: LimitWindow, dollars: int = 100, zone: str = "", raised_to: int | None = None) -> Limit:
    raised = {} if raised_to is None else {"raised_to": raised_to * NANO, "raised_until_unix": NOON + 3600}
    return Limit(Scope(Level.TENANT, "acme"), Meter.COST_NANOUSD, window, dollars * NANO, zone=zone, **raised)


def ago(days: int) -> dt.date:
    return TODAY - dt.timedelta(days=days)


def test_the_pace_is_the_spend_of_seven_days_and_today_over_their_time() -> None:
    spend = {ago(n): 2 * NANO for n in range(30)}
    assert pace_per_day(spend, NOON) == round(16 * NANO / 7.5)


def test_a_scope_that_began_later_is_measured_since_its_first_day() -> None:
    assert pace_per_day({ago(1): 3 * NANO, TODAY: 0}, NOON) == 2 * NANO
    assert pace_per_day({ago(9): 3 * NANO}, NOON) == 0, "spend of before the week is no pace"
    assert pace_per_day({}, NOON) == 0


def test_the_first_seconds_of_a_day_are_no_pace() -> None:
    midnight = dt.datetime(2026, 11, 21, tzinfo=dt.UTC).timestamp()
    assert pace_per_day({TODAY: NANO}, midnight + 1) == 24 * NANO
    assert pace_per_day({TODAY: NANO, TODAY + dt.timedelta(days=1): NANO}, midnight) == 24 * NANO, "days to come do not count"


@pytest.mark.parametrize(
    ("window", "zone", "days_left"),
    [
        (Window.HOUR, "", 1 / 24),
        (Window.DAY, "", 0.5),
        (Window.WEEK, "", 1.5),
        (Window.MONTH, "", 9.5),
        (Window.DAY, "Asia/Tokyo", 3 / 24),
        (Window.MONTH, "America/New_York", 9.5 + 5 / 24),
    ],
)
def test_a_calendar_window_ends_where_its_calendar_ends(window: Window, zone: str, days_left: float) -> None:
    expected = forecast(budget(window, zone=zone), 7 * NANO, 4 * NANO, NOON)
    assert expected.ends_unix == pytest.approx(NOON + days_left * DAY_S)
    assert expected.expected == pytest.approx(7 * NANO + 4 * NANO * days_left)
    assert expected.reached_unix is None


def test_a_budget_is_reached_when_the_pace_says_so() -> None:
    assert forecast(budget(Window.MONTH), 80 * NANO, 4 * NANO, NOON).reached_unix == NOON + 5 * DAY_S
    assert forecast(budget(Window.MONTH), 100 * NANO, 0, NOON).reached_unix == NOON
    assert forecast(budget(Window.MONTH), 20 * NANO, 0, NOON).reached_unix is None
    assert forecast(budget(Window.MONTH, raised_to=200), 100 * NANO, 0, NOON).reached_unix is None, "a raise counts while it lasts"


def test_windows_without_an_end() -> None:
    assert forecast(budget(Window.EVER), 80 * NANO, 4 * NANO, NOON) == Forecast(80 * NANO, None, None, NOON + 5 * DAY_S)
    assert forecast(budget(Window.EVER), 0, 1, NOON).reached_unix is None, "a budget for centuries"
    assert forecast(budget(Rolling(30)), 80 * NANO, 4 * NANO, NOON) == Forecast(80 * NANO, None, 120 * NANO, None)
    assert forecast(budget(Rolling(30)), 100 * NANO, 0, NOON).reached_unix == NOON


@given(
    spend=st.dictionaries(st.integers(-3, 20), st.integers(0, 10**15)),
    second=st.integers(0, DAY_S - 1),
    spent=st.integers(0, 2 * 10**11),
)
def test_the_end_and_the_day_agree(spend: dict[int, int], second: int, spent: int) -> None:
    now = dt.datetime(2026, 11, 21, tzinfo=dt.UTC).timestamp() + second
    pace = pace_per_day({ago(n): cost for n, cost in spend.items()}, now)
    assert 0 <= pace <= sum(spend.values()) * 24
    limit = budget(Window.MONTH)
    seen = forecast(limit, spent, pace, now)
    assert seen.expected is not None
    assert seen.expected >= spent
    if seen.reached_unix is not None:
        assert seen.ends_unix is not None
        assert now <= seen.reached_unix < seen.ends_unix
        assert seen.expected >= limit.amount - 1
    else:
        assert seen.expected <= limit.amount + 1


def test_the_pace_looks_back_a_week() -> None:
    assert first_day_of_pace(NOON) == ago(PACE_DAYS)
