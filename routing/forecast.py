"""By how much a pool's load will grow until an engine that is asked for now serves, from the days or weeks before. Pure.

The history is the pool's load in slots of ten minutes, in backends that it fills. With lead `h`, season `D` and load `y`, season `k` ago
the load grew by

    growth_k = max over 0 < s <= h of y(t + s - k D) - y(t - k D),  at least 0
    growth   = quantile of growth_1 ... growth_K

and the forecast is the load of now plus the growth: the seasonal random walk, y(t + h) = y(t) + y(t + h - D) - y(t - D) (Box, Jenkins,
Reinsel and Ljung, Time Series Analysis, 5th edition, chapter 9: differences of the first order, seasonal and not), with a quantile over
seasons instead of the last one alone. What the load is now is measured, not forecast, so a wrong level of past days does no harm, and a
load that falls has no growth: a forecast never asks for less than the load does. `y` is the mean of a slot at its middle, and linear in
between. `s` is `h` and every middle before it.

Seasons are counted on the clock of `zone`: what begins at nine begins at nine on the day that summer time begins, too. A season in which
a slot is missing counts for nothing; with none left there is no forecast.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import ceil, floor, isfinite
from typing import Final, Literal, Self
from zoneinfo import ZoneInfo

import msgspec
from pydantic import Field, field_validator, model_validator

from domain.strict import Strict

SLOT_S: Final = 600
"""Width of a slot. Loads of ten minutes are smooth enough to compare days, and a lead is seldom shorter than a third of it."""
DAY_S: Final = 86_400
WEEK_DAYS: Final = 7
SPARE_S: Final = 3 * 3600
"""What is kept beyond the oldest season: an hour of summer time, and the slots around."""


class PredictSettings(Strict):
    """Backends ahead of the load that the days before show; see docs/reference/scaling.md."""

    lead_s: float = Field(
        default=180.0,
        gt=0,
        le=7200,
        description="How far to look ahead: the time from asking for an engine to its first answer, and a minute more.",
    )
    season: Literal["day", "week"] = Field(
        default="day", description="What repeats itself: each day, or each week, where weekends differ from working days."
    )
    days: int = Field(default=7, ge=1, le=28, description="Days of the past that are looked at; 7 at least with `season: week`.")
    quantile: float = Field(
        default=0.8, ge=0, le=1, description="Which growth of the days is taken: 0.5 is the usual one, 1 the largest that there was."
    )
    most: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Share of `max` up to which a forecast may raise the recommendation; the load that is there may raise it further.",
    )
    zone: str = Field(default="UTC", max_length=64, description="Time zone of the days, as `Europe/Berlin`.")

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"{zone!r} is no time zone that is known here; write one of the IANA names, as Europe/Berlin or UTC") from None
        return zone

    @model_validator(mode="after")
    def _whole_seasons(self) -> Self:
        if self.season == "week" and self.days < WEEK_DAYS:
            raise ValueError(f"season is week, and days is {self.days}, less than one season; write 7, 14, 21 or 28")
        return self

    @property
    def season_days(self) -> int:
        """Days of one season."""
        return WEEK_DAYS if self.season == "week" else 1

    @property
    def seasons(self) -> int:
        """Seasons that are looked at."""
        return self.days // self.season_days

    @property
    def history_s(self) -> float:
        """How far back the history goes."""
        return float(self.days * DAY_S + SPARE_S)


class Growth(msgspec.Struct, frozen=True):
    """By how much the load is expected to grow."""

    backends: float | None
    """Backends, 0 where it is not expected to grow; None where nothing is known of it."""
    seasons: int
    """Past seasons that say so."""
    why: str


NO_GROWTH: Final = Growth(None, 0, "")


class HourLoad(msgspec.Struct, frozen=True):
    """The load of one hour of the day, over the days that are known."""

    hour: int
    days: int
    load: float
    """Quantile over days of the highest slot of the hour, in backends that it fills."""
    most: float
    """The highest slot that there was."""


class ScheduledEngines(msgspec.Struct, frozen=True):
    """So many engines between two times of the day, `HH:MM` on the clock of the zone."""

    start: str
    end: str
    engines: int


def schedule(engines: Sequence[int], lead_s: float) -> list[ScheduledEngines]:
    """The hours of a day in which more engines are needed than in its quietest one, hours of one number together.

    Args:
        engines: of each of the 24 hours.
        lead_s: how long before its first hour a number has to be asked for.
    """
    least, ahead = min(engines), ceil(lead_s / 60)
    # a day is begun where the number changes, so that no run of hours goes over its end
    first = next((hour for hour in range(24) if engines[hour] != engines[hour - 1]), 0)
    found: list[ScheduledEngines] = []
    for number, hours in groupby(((first + at) % 24 for at in range(24)), key=lambda hour: engines[hour]):
        run = list(hours)
        begin = (run[0] * 60 - min(ahead, (24 - len(run)) * 60 - 1)) % (24 * 60)
        if number > least:
            found.append(ScheduledEngines(f"{begin // 60:02d}:{begin % 60:02d}", f"{(run[-1] + 1) % 24:02d}:00", number))
    return found


class LoadSlots:
    """The load of one pool in slots, as far back as the settings look.

    Args:
        predict: how far that is.
    """

    def __init__(self, predict: PredictSettings) -> None:
        self._predict: Final = predict
        self._zone: Final = ZoneInfo(predict.zone)
        self._slots: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def last_s(self) -> float | None:
        """The end of the latest slot, seconds since the epoch; None while there is none."""
        return float((max(self._slots) + 1) * SLOT_S) if self._slots else None

    def take(self, ended: Iterable[tuple[float, float]], now: float) -> None:
        """Take the mean loads of slots, each with the end of its slot, and forget those that are too old or lie ahead of `now`."""
        for end, load in ended:
            if isfinite(load) and load >= 0:
                self._slots[round(end / SLOT_S) - 1] = load
        oldest, latest = (now - self._predict.history_s) / SLOT_S, now / SLOT_S
        self._slots = {at: load for at, load in self._slots.items() if oldest <= at < latest}

    def growth(self, now: float) -> Growth:
        """By how much the load grows from `now`, seconds since the epoch, until a lead later."""
        predict = self._predict
        known = [grown for back in range(1, predict.seasons + 1) if (grown := self._grown(self._before(now, back))) is not None]
        if not known:
            return Growth(None, 0, self._lacking(now))
        backends = _quantile(known, predict.quantile)
        what = f"{len(known)} {predict.season}{'s' if len(known) > 1 else ''} before"
        return Growth(backends, len(known), f"{backends:.1f} more are expected within {predict.lead_s:g} s, after {what}")

    def hours(self, now: float) -> list[HourLoad]:
        """The load of each hour of the day that is known, on the clock of the zone; the hour that is not over at `now` does not count.
        Weekdays are not told apart."""
        running = dt.datetime.fromtimestamp(now, self._zone)
        by_day: defaultdict[int, dict[dt.date, float]] = defaultdict(dict)
        for at, load in self._slots.items():
            local = dt.datetime.fromtimestamp((at + 0.5) * SLOT_S, self._zone)
            if (local.date(), local.hour) == (running.date(), running.hour):
                continue
            highest = by_day[local.hour]
            highest[local.date()] = max(highest.get(local.date(), 0.0), load)
        share = self._predict.quantile
        return [HourLoad(hour, len(days), _quantile(days.values(), share), max(days.values())) for hour, days in sorted(by_day.items())]

    def _before(self, now: float, back: int) -> float:
        local = dt.datetime.fromtimestamp(now, self._zone) - dt.timedelta(days=back * self._predict.season_days)
        return local.timestamp()

    def _grown(self, start: float) -> float | None:
        end = start + self._predict.lead_s
        first = self._at(start)
        loads = [self._at(end)]
        middle = (floor(start / SLOT_S - 0.5) + 1.5) * SLOT_S
        while middle < end:
            loads.append(self._at(middle))
            middle += SLOT_S
        known = [load for load in loads if load is not None]
        return None if first is None or len(known) < len(loads) else max(max(known) - first, 0.0)

    def _at(self, moment: float) -> float | None:
        place = moment / SLOT_S - 0.5
        at = floor(place)
        before, after, part = self._slots.get(at), self._slots.get(at + 1), place - at
        if part == 0 or before is None or after is None:
            return before if part == 0 else None
        return before + (after - before) * part

    def _lacking(self, now: float) -> str:
        season = self._predict.season
        if not self._slots:
            return f"no forecast: nothing is known of the {season} before"
        hours = (now - min(self._slots) * SLOT_S) / 3600
        if hours < self._predict.season_days * 24:
            return f"no forecast: the history is of {hours:.1f} hours, less than a {season}"
        return f"no forecast: of no {season} before the load at this time is known"


def _quantile(values: Iterable[float], share: float) -> float:
    """The quantile of the values, linear between two of them."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    at = floor(place)
    return ordered[at] + (ordered[min(at + 1, len(ordered) - 1)] - ordered[at]) * (place - at)
