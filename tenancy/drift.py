"""Counters against the ledger: what the ledger says of each calendar limit, and what is to be done where counters say something
else. Pure.

A settlement counts before its event is written down, and its event is in SQL within seconds. So at any moment

    ledger, read first          <= settled, read after it       or something was settled that the counters have not heard of
    settled, read a minute ago  <= ledger, read now             or something counts that nobody has used

and no tolerance is needed for requests under way, however many there are.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tenancy.counting import DAY_US, KINDS, Calendar
from tenancy.grant import digest_of_label
from tenancy.limits import Amounts, Level, Limit, Window, state_key
from tenancy.seeds import Seed
from tenancy.usage import Spent, day_of, first_of_month
from tenancy.usage_event import FREE_CLOSING, FREE_OUTCOMES, UsageEvent

TOLERATED: Final = 0.005
"""Share of what is counted by which counters and ledger may differ (reliability research, 4.5)."""

Question = tuple[Level, Window]
Asked = dict[Question, dict[str, list[tuple[str, Limit]]]]
"""What has to be read from the ledger: by level and window, then by the scope's name, the limits with their tags."""
Figures = dict[str, list[Seed]]
"""By tag, what the ledger says of each counter."""
EPOCH: Final = dt.date(1970, 1, 1)


class Today(msgspec.Struct, frozen=True):
    """The periods around a moment, UTC."""

    day: dt.date
    periods: tuple[int, ...]
    """By kind (`tenancy.counting`)."""

    def begins(self, window: Window) -> dt.date | None:
        """The first day of the period; None where there is none."""
        return {Window.DAY: self.day, Window.MONTH: first_of_month(self.day)}.get(window)

    @property
    def settled_before(self) -> dt.date:
        """What was used before this day does not change any more: the beginning of last month."""
        return first_of_month(first_of_month(self.day) - dt.timedelta(days=1))


def today_at(now_unix: float) -> Today:
    """The periods around a moment."""
    calendar, now_us = Calendar(), int(now_unix * 1e6)
    calendar.turn_to(now_us)
    return Today(EPOCH + dt.timedelta(days=now_us // DAY_US), calendar.periods)


def asked_of(limits: Iterable[tuple[str, Limit]]) -> Asked:
    """What to read for these limits and their tags."""
    asked: Asked = defaultdict(lambda: defaultdict(list))
    for tag, limit in limits:
        asked[limit.scope.level, limit.window][limit.scope.name].append((tag, limit))
    return asked


def figures_of(asked: Asked, answers: Mapping[Question, Iterable[Spent]], today: Today) -> Figures:
    """What the ledger says of every limit; of limits per end user only for those who used something."""
    figures: Figures = defaultdict(list)
    for question, by_name in asked.items():
        level, window = question
        period, silent = today.periods[KINDS[window]], dict(by_name)
        for spent in answers[question]:
            limits = by_name.get(spent.name)
            if limits is None:
                continue
            silent.pop(spent.name, None)
            vector, label = spent.amounts.vector(), digest_of_label(spent.label) if spent.label else ""
            for tag, limit in limits:
                key = state_key(limit.scope, limit.meter, window, label)
                figures[tag].append(Seed(key, window, period, vector[limit.meter]))
        for limits in silent.values() if level is not Level.USER else ():
            for tag, limit in limits:
                figures[tag].append(Seed(state_key(limit.scope, limit.meter, window), window, period, 0))
    return figures


class Look(msgspec.Struct, frozen=True, gc=False):
    """One counter at one comparison; the ledger was read first."""

    period: int
    ledger: int
    settled: int


class Drift(msgspec.Struct, frozen=True, gc=False):
    """A counter that says something else than the ledger, at two successive comparisons."""

    share: float
    """Of what it should be or is, whichever is more."""
    right: int
    """What should be settled."""
    instead_of: int | None
    """For a correction that lowers (`tenancy.seeds.Seed`); None for one that raises."""


def judged(before: Look | None, now: Look) -> Drift | None:
    """Whether a counter has drifted, as two successive comparisons show it."""
    if before is None or before.period != now.period:
        return None
    missing = min(now.ledger - now.settled, before.ledger - before.settled)
    if missing > TOLERATED * now.ledger:
        return Drift(missing / now.ledger, now.ledger, None)
    over = before.settled - now.ledger
    if over > TOLERATED * before.settled:
        return Drift(over / before.settled, max(now.settled - over, now.ledger), now.settled)
    return None


def spent_in(events: Iterable[UsageEvent], level: Level, since: dt.date | None) -> list[Spent]:
    """What events that the ledger does not have yet come to, as it would answer."""
    sums: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if since is not None and day_of(event.at_unix_ms) < since:
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
    """Scopes of a level that an event counts towards, and for end users the label."""
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
    """Two answers to one question about different days, as one."""
    found = {(spent.name, spent.label): spent for spent in some}
    for spent in more:
        was = found.get((spent.name, spent.label))
        if was is not None:
            sums = {name: getattr(was.amounts, name) + getattr(spent.amounts, name) for name in Amounts.__struct_fields__}
            spent = Spent(spent.name, spent.label, Amounts(**sums))
        found[spent.name, spent.label] = spent
    return list(found.values())
