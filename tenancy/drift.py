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
from tenancy.limits import Amounts, Level, Limit, Window, counter_key
from tenancy.periods import period_around
from tenancy.rates import Calendar, kind_of
from tenancy.seeds import Seed
from tenancy.usage import FREE_CLOSING, FREE_OUTCOMES, Spent, UsageEvent, day_of, first_of_month

TOLERATED: Final = 0.005
"""Difference between counter and ledger that is tolerated, as a share of the amount (reliability research, 4.5)."""

Question = tuple[Level, Window, str]
"""The level, window and time zone of limits."""
Asked = dict[Question, dict[str, list[tuple[str, Limit]]]]
"""The questions to the ledger: by level, window and time zone, then by the scope's name, the limits with their tags."""
Figures = dict[str, list[Seed]]
"""By tag, the ledger's amount for each counter."""


class Today(msgspec.Struct, frozen=True):
    """The periods around a moment."""

    now_s: int
    calendar: Calendar

    def period(self, window: Window, zone: str = "") -> int:
        """The number of the period (`tenancy.rates.Calendar.periods`)."""
        return self.calendar.periods[kind_of(window, zone)]

    def begins_s(self, window: Window, zone: str = "") -> int | None:
        """When the period began, in seconds since 1970; None where it never did."""
        return None if window is Window.EVER else period_around(window, zone, self.now_s)[0]

    @property
    def settled_before(self) -> dt.date:
        """Usage before this day does not change any more: the first day of last month, UTC."""
        return first_of_month(first_of_month(day_of(self.now_s * 1000)) - dt.timedelta(days=1))


def today_at(now_unix: float) -> Today:
    """The periods around a moment."""
    calendar = Calendar()
    calendar.turn_to(int(now_unix * 1e6))
    return Today(int(now_unix), calendar)


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


def spent_in(events: Iterable[UsageEvent], level: Level, since_s: int | None) -> list[Spent]:
    """The sums of events since a moment that the ledger does not have yet, in the form of the ledger's answer."""
    sums: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if since_s is not None and event.at_unix_ms < since_s * 1000:
            continue
        free = event.closing == FREE_CLOSING and event.outcome in FREE_OUTCOMES
        usage = event.usage
        numbers = (usage.prompt_tokens, usage.completion_tokens, event.units, event.cost_nanousd, 0 if free else 1)
        for place in _places(event, level):
            total = sums.setdefault(place, [0, 0, 0, 0, 0])
            for n, number in enumerate(numbers):
                total[n] += number
    return [Spent(name, label, Amounts(*total)) for (name, label), total in sums.items()]


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
    by_scope = {(spent.name, spent.label): spent for spent in some}
    for spent in more:
        was = by_scope.get((spent.name, spent.label))
        if was is not None:
            sums = {name: getattr(was.amounts, name) + getattr(spent.amounts, name) for name in Amounts.__struct_fields__}
            spent = Spent(spent.name, spent.label, Amounts(**sums))
        by_scope[spent.name, spent.label] = spent
    return list(by_scope.values())
