"""Forecasts of budgets: what a limit on money will have spent at the end of its window, and when it will be spent. Pure.

The pace is the spend of the last seven days and of today, divided by the time since then; for a scope that began to spend later, since the
UTC midnight before its first spend. The forecast of a calendar window is what is spent so far and the pace for the rest of the window. A
rolling window has no end: its forecast is what so many days cost at the pace. A budget for ever has no forecast, only a day at which it
will be spent. Prices that change, weekends and growth are not foreseen.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Final

import msgspec

from tenancy.limits import Limit, Rolling, Window
from tenancy.periods import DAY_S, HOUR_S, period_around

PACE_DAYS: Final = 7
"""Whole days before today whose spend makes the pace: a week, so that each day of the week counts once."""
LEAST_S: Final = HOUR_S
"""The shortest time that spend is divided by: a single request in the first seconds of a day is no pace."""
HORIZON_S: Final = 3650 * DAY_S
"""A budget that lasts longer is not called spent at any time."""


class Forecast(msgspec.Struct, frozen=True):
    """What is expected of one budget. Money is in nano-dollars."""

    spent: int
    """What counts towards the limit now, without the reservations of requests under way."""
    ends_unix: int | None
    """The end of the window; None for windows without one."""
    expected: int | None
    """The spend at the end of the window, or of so many days of a rolling window; None for a budget for ever."""
    reached_unix: float | None
    """When the amount will be spent, where that is before the end of the window; now where it is spent already. None where it will not be,
    and for a rolling window that is not spent now: how fast old spend leaves it is not known."""


def first_day_of_pace(now_unix: float) -> dt.date:
    """The first day, UTC, whose spend counts for the pace."""
    return dt.datetime.fromtimestamp(now_unix, dt.UTC).date() - dt.timedelta(days=PACE_DAYS)


def pace_per_day(spend: Mapping[dt.date, int], now_unix: float) -> int:
    """Nano-dollars per day, of the spend by day (UTC). Days before `first_day_of_pace` and days to come do not count."""
    today = dt.datetime.fromtimestamp(now_unix, dt.UTC).date()
    counted = {day: cost for day, cost in spend.items() if cost > 0 and first_day_of_pace(now_unix) <= day <= today}
    if not counted:
        return 0
    began = dt.datetime.combine(min(counted), dt.time(), dt.UTC).timestamp()
    return round(sum(counted.values()) * DAY_S / max(now_unix - began, LEAST_S))


def forecast(limit: Limit, spent: int, pace: int, now_unix: float) -> Forecast:
    """What is expected of a limit on money.

    Args:
        spent: what counts towards it now, without reservations.
        pace: nano-dollars per day.
    """
    amount = limit.effective(now_unix)
    if isinstance(limit.window, Rolling):
        return Forecast(spent, None, pace * limit.window.days, now_unix if spent >= amount else None)
    if limit.window is Window.EVER:
        return Forecast(spent, None, None, _reached(spent, amount, pace, now_unix, now_unix + HORIZON_S))
    _, ends = period_around(limit.window, limit.zone, int(now_unix))
    expected = spent + round(pace * (ends - now_unix) / DAY_S)
    return Forecast(spent, ends, expected, _reached(spent, amount, pace, now_unix, ends))


def _reached(spent: int, amount: int, pace: int, now_unix: float, before_unix: float) -> float | None:
    if spent >= amount:
        return now_unix
    if pace <= 0:
        return None
    at = now_unix + (amount - spent) * DAY_S / pace
    return at if at < before_unix else None
