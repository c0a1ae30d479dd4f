"""Reconciles counters with the ledger: the ledger's amount for each calendar limit, and the correction where a counter differs. Pure.

A settlement is counted before its usage event is logged, and the event is in SQL within seconds. So at any moment

    ledger, read first          <= settled, read after it       else usage was booked that the counter does not have
    settled, read a minute ago  <= ledger, read now             else the counter has usage that was never booked

and no tolerance is needed for requests under way, however many there are.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tenancy.grant import digest_of_label
from tenancy.limits import Amounts, Level, Limit, LimitWindow, Rolling, Window, counter_key
from tenancy.periods import HOUR_S, period_around
from tenancy.rates import HOURS_A_DAY, Calendar, kind_of
from tenancy.seeds import Seed
from tenancy.usage import FREE_CLOSING, FREE_OUTCOMES, Spent, UsageEvent, day_of, first_of_month

TOLERATED: Final = 0.005
"""Difference between counter and ledger that is tolerated, as a share of the amount (reliability research, 4.5)."""

HOURS_COMPARED: Final = 3
"""Hours of a rolling window that are compared with the ledger, up to this one: the amounts of older hours do not change any more, but by
requests that run for hours. All of them are set when counters are lost."""

Question = tuple[Level, LimitWindow, str]
"""The level, window and time zone of limits."""
Asked = dict[Question, dict[str, list[tuple[str, Limit]]]]
"""The questions to the ledger: by level, window and time zone, then by the scope's name, the limits with their tags."""
Figures = dict[str, list[Seed]]
"""By tag, the ledger's amount for each counter."""


class Today(msgspec.Struct, frozen=True):
    """The periods around a moment."""

    now_s: int
    calendar: Calendar
    newest_hours: int | None = None
    """Hours of rolling windows that are asked for; None for all."""

    def period(self, window: LimitWindow, zone: str = "") -> int:
        """The number of the period (`tenancy.rates.Calendar.periods`)."""
        return self.calendar.periods[kind_of(window, zone)]

    def hours(self, window: Rolling) -> range:
        """The hours of a rolling window that are asked for, since 1970."""
        now = self.now_s // HOUR_S
        most = HOURS_A_DAY * window.days + 1
        return range(now + 1 - (most if self.newest_hours is None else min(self.newest_hours, most)), now + 1)

    def begins_s(self, window: LimitWindow, zone: str = "") -> int | None:
        """When the period began, in seconds since 1970; None where it never did."""
        if isinstance(window, Rolling):
            return self.hours(window).start * HOUR_S
        return None if window is Window.EVER else period_around(window, zone, self.now_s)[0]

    @property
    def settled_before(self) -> dt.date:
        """Usage before this day does not change any more: the first day of last month, UTC."""
        return first_of_month(first_of_month(day_of(self.now_s * 1000)) - dt.timedelta(days=1))


def today_at(now_unix: float, newest_hours: int | None = None) -> Today:
    """The periods around a moment, and so many hours of rolling windows; None for all."""
    calendar = Calendar()
    calendar.turn_to(int(now_unix * 1e6))
    return Today(int(now_unix), calendar, newest_hours)


def asked_of(limits: Iterable[tuple[str, Limit]]) -> Asked:
    """The questions to the ledger for these limits and their tags."""
    asked: Asked = defaultdict(lambda: defaultdict(list))
    for tag, limit in limits:
        asked[limit.scope.level, limit.window, limit.zone][limit.scope.name].append((tag, limit))
    return asked


def figures_of(asked: Asked, answers: Mapping[Question, Iterable[Spent]], today: Today) -> Figures:
    """The ledger's amount for every limit; of limits per end user only for end users with usage."""
    figures: Figures = defaultdict(list)
    for question, by_name in asked.items():
        level, window, zone = question
        if isinstance(window, Rolling):
            _add_hours(figures, level, window, by_name, answers[question], today)
            continue
        period = today.period(window, zone)
        unused = dict(by_name)
        for spent in answers[question]:
            limits = by_name.get(spent.name)
            if limits is None:
                continue
            unused.pop(spent.name, None)
            vector = spent.amounts.vector()
            label = digest_of_label(spent.label) if spent.label else ""
            for tag, limit in limits:
                figures[tag].append(Seed(counter_key(limit, label), window, period, vector[limit.meter], zone=zone))
        for limits in unused.values() if level is not Level.USER else ():
            for tag, limit in limits:
                figures[tag].append(Seed(counter_key(limit), window, period, 0, zone=zone))
    return figures


def _add_hours(
    figures: Figures, level: Level, window: Rolling, by_name: Mapping[str, list[tuple[str, Limit]]], answer: Iterable[Spent], today: Today
) -> None:
    """Add the ledger's amount for each hour of rolling windows; an hour without usage only where hours are compared."""
    unused = {(name, hour) for name in by_name for hour in today.hours(window)} if today.newest_hours is not None else set()
    nothing = [Spent(name, "", Amounts(requests=0), hour) for name, hour in sorted(unused - {(spent.name, spent.hour) for spent in answer})]
    for spent in [*answer, *(nothing if level is not Level.USER else ())]:
        vector = spent.amounts.vector()
        label = digest_of_label(spent.label) if spent.label else ""
        for tag, limit in by_name.get(spent.name, ()):
            figures[tag].append(Seed(counter_key(limit, label), window, spent.hour, vector[limit.meter]))


class CounterComparison(msgspec.Struct, frozen=True, gc=False):
    """One counter and its ledger amount at one comparison; the ledger was read first."""

    period: int
    ledger: int
    settled: int


class Drift(msgspec.Struct, frozen=True, gc=False):
    """A counter that differs from the ledger at two successive comparisons."""

    share: float
    """The difference, as a share of what the counter should have or has, whichever is more."""
    right: int
    """The amount that should be settled."""
    instead_of: int | None
    """The settled amount that a lowering correction replaces (`tenancy.seeds.Seed`); None for a correction that raises."""


def judged(before: CounterComparison | None, now: CounterComparison) -> Drift | None:
    """The drift that two successive comparisons show; None for none."""
    if before is None or before.period != now.period:
        return None
    missing = min(now.ledger - now.settled, before.ledger - before.settled)
    if missing > TOLERATED * now.ledger:
        return Drift(missing / now.ledger, now.ledger, None)
    over = before.settled - now.ledger
    if over > TOLERATED * before.settled:
        return Drift(over / before.settled, max(now.settled - over, now.ledger), now.settled)
    return None


def spent_in(events: Iterable[UsageEvent], level: Level, since_s: int | None, *, per_hour: bool = False) -> list[Spent]:
    """The sums of events since a moment that the ledger does not have yet, in the form of the ledger's answer."""
    sums: dict[tuple[str, str, int], list[int]] = {}
    for event in events:
        if since_s is not None and event.at_unix_ms < since_s * 1000:
            continue
        free = event.closing == FREE_CLOSING and event.outcome in FREE_OUTCOMES
        usage = event.usage
        tokens = (usage.prompt_tokens, usage.completion_tokens, event.units, event.cost_nanousd)
        numbers = (*tokens, 0 if free else 1, usage.audio_seconds, usage.audio_bytes)
        hour = event.at_unix_ms // (HOUR_S * 1000) if per_hour else 0
        for place in _places(event, level):
            total = sums.setdefault((*place, hour), [0] * len(numbers))
            for n, number in enumerate(numbers):
                total[n] += number
    return [Spent(name, label, Amounts(*total), hour) for (name, label, hour), total in sums.items()]


def _places(event: UsageEvent, level: Level) -> list[tuple[str, str]]:
    """Name and label of the scopes of a level that an event counts towards; only scopes of end users have a label."""
    project = f"{event.tenant}/{event.project}"
    if level is Level.USER:
        return [(event.tenant, event.user), (project, event.user)] if event.user else []
    names = {
        Level.GLOBAL: "",
        Level.MODEL: event.model,
        Level.ORGANISATION: event.organisation,
        Level.TENANT: event.tenant,
        Level.PROJECT: project,
        Level.KEY: event.key_id,
    }
    return [(names[level], "")]


def added(some: Iterable[Spent], more: Iterable[Spent]) -> list[Spent]:
    """The sum of two answers to one question about different days."""
    by_scope = {(spent.name, spent.label, spent.hour): spent for spent in some}
    for spent in more:
        was = by_scope.get((spent.name, spent.label, spent.hour))
        if was is not None:
            sums = {name: getattr(was.amounts, name) + getattr(spent.amounts, name) for name in Amounts.__struct_fields__}
            spent = Spent(spent.name, spent.label, Amounts(**sums), spent.hour)
        by_scope[spent.name, spent.label, spent.hour] = spent
    return list(by_scope.values())
