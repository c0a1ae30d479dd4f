"""What the days before let expect of a pool's load."""

import datetime as dt
import math
from collections.abc import Callable
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from routing.forecast import DAY_S, SLOT_S, Growth, LoadSlots, PredictSettings, schedule
from routing.scaling import PoolLoad, ScaleHistory, ScaleSettings, needed

MONDAY = dt.datetime(2026, 6, 1, tzinfo=dt.UTC).timestamp()
PER_DAY = DAY_S // SLOT_S
LEAD = PredictSettings(lead_s=900.0)


def filled(load: Callable[[float], float], now: float, days: float, predict: PredictSettings = LEAD) -> LoadSlots:
    """The history of so many days up to `now`, of a load that is a function of time."""
    slots = LoadSlots(predict)
    last = int(now // SLOT_S)
    slots.take([((at + 1.0) * SLOT_S, load((at + 0.5) * SLOT_S)) for at in range(last - int(days * PER_DAY), last)], now)
    return slots


def wave(moment: float) -> float:
    return 5 + 4 * math.sin(2 * math.pi * moment / DAY_S)


def jobs_at_nine(moment: float) -> float:
    return 8.0 if 9 <= moment % DAY_S / 3600 < 11 else 1.0


def test_a_constant_load_has_no_growth() -> None:
    growth = filled(lambda _: 4.0, MONDAY + 3333, 3).growth(MONDAY + 3333)
    assert (growth.backends, growth.seasons) == (0.0, 3)


@given(st.floats(0, 86_400, exclude_max=True))
def test_a_daily_shape_is_found_after_one_day(second: float) -> None:
    now = MONDAY + second
    growth = filled(wave, now, 1.2).growth(now)
    rise = max(wave(now + ahead) for ahead in range(0, 901, 10)) - wave(now)
    assert growth.seasons == 1
    assert growth.backends == pytest.approx(rise, abs=0.02)


def test_jobs_are_expected_before_they_begin_and_not_after() -> None:
    def growth(hour: float) -> float:
        now = MONDAY + hour * 3600
        return filled(jobs_at_nine, now, 2.2).growth(now).backends or 0.0

    assert growth(8.5) == 0
    assert growth(8.9) == pytest.approx(7.0)
    assert growth(9.5) == 0 and growth(10.9) == 0, "a load that falls has no growth"


def test_less_than_a_season_is_no_forecast_and_says_so() -> None:
    now = MONDAY + 40_000
    assert filled(wave, now, 0.9).growth(now).backends is None
    assert filled(wave, now, 0.9).growth(now).why == "no forecast: the history is of 21.6 hours, less than a day"
    assert LoadSlots(LEAD).growth(now).why == "no forecast: nothing is known of the day before"
    weekly = PredictSettings(season="week")
    assert filled(wave, now, 6, weekly).growth(now).why == "no forecast: the history is of 144.1 hours, less than a week"


def test_weeks_tell_the_weekend_from_working_days() -> None:
    def working_days(moment: float) -> float:
        return jobs_at_nine(moment) if dt.datetime.fromtimestamp(moment, dt.UTC).weekday() < 5 else 1.0

    saturday = MONDAY + 5 * DAY_S + 8.9 * 3600
    weekly = PredictSettings(lead_s=900.0, season="week", days=14)
    assert filled(working_days, saturday, 14.1, weekly).growth(saturday).backends == 0
    assert filled(working_days, saturday, 14.1).growth(saturday).backends == pytest.approx(7.0), "days alone do not"
    friday = saturday - DAY_S
    assert filled(working_days, friday, 14.1, weekly).growth(friday).backends == pytest.approx(7.0)


def test_the_quantile_chooses_among_days() -> None:
    now = MONDAY + 8.9 * 3600

    def growing(moment: float) -> float:
        return 1.0 + ((now - moment) // DAY_S + 1 if 9 <= moment % DAY_S / 3600 < 11 else 0.0)

    def growth(quantile: float) -> float:
        predict = PredictSettings(lead_s=900.0, days=4, quantile=quantile)
        return filled(growing, now, 5, predict).growth(now).backends or 0.0

    assert [growth(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 2.5, 4.0])


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_what_begins_at_nine_begins_at_nine_when_the_clock_changes(day: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")

    def local_jobs(moment: float) -> float:
        return 8.0 if 9 <= dt.datetime.fromtimestamp(moment, berlin).hour < 11 else 1.0

    now = dt.datetime.fromisoformat(f"{day}T08:54").replace(tzinfo=berlin).timestamp()
    predict = PredictSettings(lead_s=900.0, zone="Europe/Berlin")
    assert filled(local_jobs, now, 7.1, predict).growth(now).backends == pytest.approx(7.0)
    early = now - 3600
    assert filled(local_jobs, early, 7.1, predict).growth(early).backends == 0
    assert filled(local_jobs, now, 7.1).growth(now).backends == 0, "days of UTC are an hour off"


def test_a_missing_slot_takes_its_day_out_and_no_more() -> None:
    now = MONDAY + 8.9 * 3600
    slots = LoadSlots(LEAD)
    last = int(now // SLOT_S)
    missing = {int((now - DAY_S) // SLOT_S)}
    ended = [((at + 1.0) * SLOT_S, jobs_at_nine((at + 0.5) * SLOT_S)) for at in range(last - 3 * PER_DAY - 5, last) if at not in missing]
    slots.take([*ended, (now, math.nan), (now, -1.0)], now)
    growth = slots.growth(now)
    assert (growth.backends, growth.seasons) == (pytest.approx(7.0), 2)


def test_the_history_is_bounded_and_survives_a_clock_that_jumps() -> None:
    now = MONDAY + 1e6
    slots = filled(wave, now, 60, PredictSettings(days=28))
    assert 28 * PER_DAY <= len(slots) <= 28 * PER_DAY + 20
    before = now - 10 * DAY_S
    assert slots.growth(before).backends is not None, "back: the days before that are known"
    slots.take((), before)
    assert slots.last_s == pytest.approx(before, abs=SLOT_S), "what lies ahead of the clock is forgotten"
    slots.take((), now + 100 * DAY_S)
    assert len(slots) == 0 and slots.growth(now + 100 * DAY_S).backends is None


def test_the_hours_of_a_day_are_those_of_the_zone() -> None:
    predict = PredictSettings(zone="Asia/Tokyo", quantile=0.5)
    hours = filled(jobs_at_nine, MONDAY, 3, predict).hours(MONDAY)
    assert [one.hour for one in hours] == list(range(24))
    assert {one.hour for one in hours if one.load > 1} == {18, 19}
    assert (hours[18].days, hours[18].load, hours[18].most) == (3, 8.0, 8.0)
    assert [one.hour for one in filled(jobs_at_nine, MONDAY, 0.25).hours(MONDAY)] == [18, 19, 20, 21, 22, 23]
    ten_past = MONDAY + 600
    assert {one.days for one in filled(jobs_at_nine, ten_past, 3).hours(ten_past)} == {3}, "the hour that runs is no day of it"


def test_a_schedule_joins_hours_and_begins_a_lead_earlier() -> None:
    def told(engines: list[int], lead_s: float = 180.0) -> list[tuple[str, str, int]]:
        return [(one.start, one.end, one.engines) for one in schedule(engines, lead_s)]

    assert told([2] * 24) == []
    assert told([1] * 9 + [6, 6] + [1] * 13) == [("08:57", "11:00", 6)]
    assert told([3] * 2 + [1] * 6 + [4] * 10 + [3] * 6) == [("07:57", "18:00", 4), ("17:57", "02:00", 3)]
    assert told([2] * 23 + [1]) == [("23:57", "23:00", 2)]
    assert told([2] * 23 + [1], 7200.0) == [("23:01", "23:00", 2)], "a start at the end is none for KEDA"


@given(st.lists(st.integers(0, 9), min_size=24, max_size=24), st.floats(1, 7200))
def test_a_schedule_gives_each_hour_what_it_needs(engines: list[int], lead_s: float) -> None:
    def minutes(time: str) -> int:
        return int(time[:2]) * 60 + int(time[3:])

    found = schedule(engines, lead_s)
    for hour, needed_then in enumerate(engines):
        for minute in (hour * 60, hour * 60 + 59):
            given = [one.engines for one in found if (minute - minutes(one.start)) % 1440 < (minutes(one.end) - minutes(one.start)) % 1440]
            assert max(given, default=min(engines)) >= needed_then
    assert all(one.start != one.end for one in found)


LOADS = st.builds(
    PoolLoad,
    backends=st.integers(0, 12),
    up=st.integers(0, 12),
    telling=st.integers(0, 12),
    running=st.integers(0, 500),
    waiting=st.integers(0, 200),
    kv_used=st.floats(0, 12),
    kv_telling=st.integers(0, 12),
    slots=st.just(0.0) | st.floats(1, 64),
    deficit=st.none() | st.floats(0, 1),
    held=st.integers(0, 3),
)


@given(LOADS, st.floats(0, 100), st.floats(0.05, 1), st.booleans())
def test_a_forecast_only_adds_and_stays_within_its_bound(load: PoolLoad, grown: float, most: float, wakes: bool) -> None:
    zero = {"min": 0, "to_zero": {}} if wakes else {}
    plain = ScaleSettings.model_validate({"max": 10, **zero})
    ahead = ScaleSettings.model_validate({"max": 10, "predict": {"most": most}, **zero})
    growth = Growth(grown, 1, "it grows")
    now, then = needed(load, plain), needed(load, ahead, growth)
    assert then.backends >= now.backends
    assert then.backends <= max(now.backends, math.floor(most * 10 + 1e-9))
    without, wanted = ScaleHistory(plain).note(load, 0.0), ScaleHistory(ahead).note(load, 0.0, growth)
    assert without.wanted <= wanted.wanted <= 10


def test_a_need_that_was_forecast_says_why() -> None:
    scale = ScaleSettings.model_validate({"predict": {}})
    now = MONDAY + 8.9 * 3600
    load = PoolLoad(backends=2, up=2, telling=2, running=8, slots=8.0)
    wanted = ScaleHistory(scale).note(load, 0.0, filled(jobs_at_nine, now, 2.2).growth(now))
    assert (wanted.wanted, wanted.need.forecast, wanted.need.load) == (10, pytest.approx(10.0), pytest.approx(1.0))
    assert wanted.why == "7.0 more are expected within 900 s, after 2 days before: the load fills 1.0 backends now"


def test_a_pool_that_sleeps_wakes_for_a_load_and_not_for_a_request() -> None:
    scale = ScaleSettings.model_validate({"min": 0, "to_zero": {}, "predict": {}})
    asleep = PoolLoad(backends=0)
    assert needed(asleep, scale, Growth(0.3, 1, "")).backends == 0
    assert needed(asleep, scale, Growth(0.6, 1, "")).backends == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"season": "week", "days": 3}, "season is week, and days is 3"),
        ({"zone": "Middle/Earth"}, "'Middle/Earth' is no time zone"),
        ({"zone": "../etc/passwd"}, "is no time zone"),
        ({"season": "month"}, "'day' or 'week'"),
        ({"quantile": 1.5}, "less than or equal to 1"),
        ({"lead_s": 0}, "greater than 0"),
    ],
)
def test_wrong_settings_are_told(written: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PredictSettings.model_validate(written)
