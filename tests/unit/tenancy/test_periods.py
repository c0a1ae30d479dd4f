"""Periods of calendars against a walk over the clocks of the zone, and days on which the clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits import ZONED, Level, Limit, Meter, Scope, Window, zone_named, zone_names
from tenancy.periods import QUARTER_S, clock_of, period_around
from tenancy.rates import DAY, MONTH, Calendar, is_dated, kind_of

FORMATS = {Window.HOUR: "%Y-%m-%d %H", Window.DAY: "%Y-%m-%d", Window.WEEK: "%G-%V", Window.MONTH: "%Y-%m"}
MOMENTS = st.integers(1_767_225_600, 2_200_000_000)
ZONES = st.sampled_from(["", *sorted(zone_names())])


@given(at=MOMENTS, window=st.sampled_from(sorted(ZONED, key=str)), zone=ZONES)
def test_a_period_is_the_time_in_which_the_zones_clocks_show_the_same_date(at: int, window: Window, zone: str) -> None:
    clock = clock_of(zone) if zone else UTC

    def shown(moment: int) -> str:
        return datetime.fromtimestamp(moment, clock).strftime(FORMATS[window])

    begin, end = period_around(window, zone, at)
    assert begin <= at < end
    assert shown(begin) == shown(at) == shown(end - 1)
    assert shown(begin - 1) != shown(begin) and shown(end) != shown(at)
    assert not begin % QUARTER_S and not end % QUARTER_S


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", (2026, 3, 29), 23),
        ("Europe/Berlin", (2026, 10, 25), 25),
        ("Europe/Berlin", (2026, 6, 1), 24),
        ("America/New_York", (2026, 3, 8), 23),
        ("America/New_York", (2026, 11, 1), 25),
        ("Australia/Lord_Howe", (2026, 4, 5), 24.5),
        ("Asia/Kathmandu", (2026, 3, 29), 24),
        ("America/Havana", (2026, 3, 8), 23),
    ],
)
def test_days_on_which_the_clocks_change_are_as_long_as_they_are(zone: str, day: tuple[int, int, int], hours: float) -> None:
    noon = int(datetime(*day, 12, tzinfo=ZoneInfo(zone)).timestamp())
    begin, end = period_around(Window.DAY, zone, noon)
    assert (end - begin) / 3600 == hours


def test_weeks_begin_on_monday() -> None:
    sunday = datetime(2027, 1, 3, 23, 59, 59, tzinfo=UTC)
    begin, end = period_around(Window.WEEK, "", int(sunday.timestamp()))
    assert datetime.fromtimestamp(begin, UTC) == datetime(2026, 12, 28, tzinfo=UTC)
    assert datetime.fromtimestamp(end, UTC) == sunday + timedelta(seconds=1)


@given(at=MOMENTS, zone=ZONES, later=st.integers(1, 40 * 86_400))
def test_a_calendar_follows_time_in_every_zone(at: int, zone: str, later: int) -> None:
    calendar = Calendar()
    for now in (at, at + later):
        calendar.turn_to(now * 1_000_000)
        for window in (*ZONED, Window.HOUR):
            kind = kind_of(window, zone if window in ZONED else "")
            end = period_around(window, zone if window in ZONED else "", now)[1]
            assert calendar.ends_us[kind] == end * 1_000_000
            assert calendar.periods[kind] == (end if is_dated(kind) else calendar.periods[{Window.DAY: DAY, Window.MONTH: MONTH}[window]])
            assert not calendar.is_over(calendar.periods[kind], now * 1_000_000)
            assert calendar.is_over(calendar.periods[kind] - 1, (end + 1) * 1_000_000)


def test_a_zone_that_does_not_exist_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(ValueError, match=r"zone 'Europe/Belrin' is no time zone; did you mean Europe/Berlin\?"):
        zone_named("Europe/Belrin")
    for wrong in ("../etc/passwd", "localtime", "+02:00", "europe"):
        with pytest.raises(ValueError, match="is no time zone"):
            Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 5, zone=wrong)
    assert (zone_named("UTC"), zone_named(""), zone_named("Asia/Kathmandu")) == ("", "", "Asia/Kathmandu")


@pytest.mark.parametrize("window", [Window.MINUTE, Window.HOUR, Window.EVER])
def test_only_days_weeks_and_months_have_a_zone(window: Window) -> None:
    with pytest.raises(ValueError, match="only limits per day, week or month have a time zone"):
        Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, window, 5, zone="Europe/Berlin")
