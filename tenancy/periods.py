"""Periods of a calendar, in a time zone: where the hour, day, week or month around a moment begins and ends. Pure, but for the rules of
the zones, which are read once from the tzdata package: all gateways of one version agree on them, whatever their machines have.

Days are those of the zone's clocks, so that a day has 23 or 25 hours where the clocks change. A week begins on Monday (ISO 8601). An hour
and every window without a zone is that of UTC.
"""

import datetime as dt
from functools import lru_cache
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

from tenancy.limits import Window

HOUR_S: Final = 3600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
MONDAY_S: Final = 4 * DAY_S
"""The first Monday since 1970, which began on a Thursday."""
QUARTER_S: Final = 900
"""Every period begins at a multiple of this: since 1972 all offsets of zones from UTC are whole quarters of an hour."""


def period_around(window: Window, zone: str, at_s: int) -> tuple[int, int]:
    """Beginning and end, in seconds since 1970, of the period of a calendar around a moment; the end is not part of it.

    Args:
        window: `HOUR`, `DAY`, `WEEK` or `MONTH`.
        zone: a name that `tenancy.limits` accepts; empty for UTC.
    """
    if window is Window.HOUR:
        begin = at_s // HOUR_S * HOUR_S
        return begin, begin + HOUR_S
    clock = clock_of(zone) if zone else dt.UTC
    day = dt.datetime.fromtimestamp(at_s, clock).date()
    if window is Window.DAY:
        first, after = day, day + dt.timedelta(days=1)
    elif window is Window.WEEK:
        first = day - dt.timedelta(days=day.weekday())
        after = first + dt.timedelta(days=7)
    else:
        first = day.replace(day=1)
        after = (first + dt.timedelta(days=32)).replace(day=1)
    return _midnight(first, clock), _midnight(after, clock)


def _midnight(day: dt.date, clock: dt.tzinfo) -> int:
    """The moment at which a day begins: the first one of two, and the change of the clocks where they skip midnight."""
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=clock).timestamp())


@lru_cache(maxsize=1024)
def clock_of(name: str) -> ZoneInfo:
    """The clocks of a time zone, by a name that `tenancy.limits` accepts. `ZoneInfo(name)` would read the machine's own rules first, and
    machines differ: governments change the rules of future years."""
    place = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with place.open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)
