"""Budget alerts: which thresholds of a limit its usage has reached, and the store of alerts that are due or were sent. Pure.

An alert belongs to a limit, a period of its window, a percentage and the amount that was in force: a budget that is raised or lowered is a
new budget, of which every percentage is told anew. One alert is sent at a time: where usage jumps over several percentages at once, the
highest one is told.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from tenancy.hold import LimitUsage
from tenancy.limits import Level, Limit, LimitLine, Meter, Window, public_id

Result = Literal["waiting", "sent", "superseded", "given_up"]
"""How an alert stands. `superseded`: a higher percentage was reached at the same look, and is told instead."""

REARM_BELOW: Final = 0.9
"""A rolling window has no periods: its alert is sent again once its usage was below this part of the percentage."""

PERIODIC: Final = frozenset({"hour", "day", "week", "month", "ever"})
"""The windows that begin anew at a known time, or never."""

UNTOLD: Final = frozenset({Level.USER})
"""Levels whose limits count for each end user separately; nobody wants an alert for each of them."""


class BudgetAlert(msgspec.Struct, frozen=True):
    """One percentage of one limit that was reached."""

    id: str
    limit_id: str
    """The public id of the limit."""
    period: str
    """The end of the period in seconds since the epoch, rounded to minutes; `ever`, or `rolling`."""
    percent: int
    amount: int
    used: int
    at_unix: float
    body: bytes
    """The message as it is posted, JSON."""
    result: Result
    attempts: int = 0
    next_try_unix: float | None = None
    """When it is posted next; None when it is over."""


class AlertStore(Protocol):
    """The alerts of a gateway, shared by its admin processes. Every method raises `tenancy.alerts.AlertsAway`."""

    async def add(self, alerts: Sequence[BudgetAlert]) -> int:
        """Write alerts that are not known yet; returns how many were new. Of two processes that add one, one does."""
        ...

    async def claim(self, now_unix: float, lease_s: float, most: int) -> list[BudgetAlert]:
        """Alerts that are due; nobody else gets them before `lease_s` are over."""
        ...

    async def note(self, alert_id: str, result: Result, attempts: int, next_try_unix: float | None) -> None:
        """Write how a try has ended."""
        ...

    async def rearm(self, alert_ids: Collection[str]) -> set[str]:
        """Forget alerts of rolling windows whose usage has fallen again; returns those that stay because they are still to be posted."""
        ...

    async def newest(self, limit: int, limit_id_begins: str = "") -> list[BudgetAlert]:
        """The newest alerts first."""
        ...

    async def forget(self, before_unix: float) -> int:
        """Remove old alerts that are over; returns how many."""
        ...


class AlertsAway(Exception):
    """The database cannot be asked now."""


def is_told(limit: Limit, meters: Collection[Meter]) -> bool:
    """Whether alerts are sent about a limit."""
    return limit.meter in meters and limit.scope.level not in UNTOLD and limit.window not in (Window.MINUTE, Window.NOW)


def alert_id(line: LimitLine, period: str, percent: int) -> str:
    """The id of an alert: the same whoever finds it, and however often."""
    return hashlib.sha256(f"{line.key}\n{period}\n{percent}\n{line.amount}".encode()).hexdigest()[:32]


def period_of(usage: LimitUsage, now_unix: float) -> str:
    """The period in which usage was counted."""
    window = usage.line.window
    if window.value not in PERIODIC:
        return "rolling"
    return "ever" if window is Window.EVER else f"{round((now_unix + usage.reset_us / 1e6) / 60) * 60}"


def reached(usage: LimitUsage, percents: Iterable[int]) -> list[int]:
    """The percentages of a limit's amount that its usage has reached, ascending. Reservations of requests under way do not count."""
    used, amount = usage.used - usage.held, usage.line.amount
    return [] if amount <= 0 else sorted(percent for percent in percents if used * 100 >= percent * amount)


def fallen(usage: LimitUsage, percents: Iterable[int]) -> list[int]:
    """The percentages of a rolling window's amount that its usage has left clearly again."""
    used, amount = usage.used - usage.held, usage.line.amount
    return [percent for percent in percents if used * 100 < REARM_BELOW * percent * amount]


def name_of(limit: Limit) -> str:
    """The public id of a limit."""
    return public_id(limit.scope, limit.meter, limit.window)
