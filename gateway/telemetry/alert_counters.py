"""Counters of budget alerts, and when limits were last looked at. No series where nobody is told.

Size: one source of figures beside `rollout_gauges`, whose families are another subject.
"""

from collections.abc import Iterator
from typing import Final

from gateway.alerts.watch import AlertCounts

ALERT_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_budget_alerts_total": ("Messages about budgets: sent, failed posts, and messages given up.", ("result",)),
}
ALERT_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_budget_alerts_looked_timestamp_seconds": ("When every limit was last looked at for budget alerts.", ()),
}

Rows = list[tuple[tuple[str, ...], float]]


def alert_counts(counts: AlertCounts | None) -> Iterator[tuple[str, Rows]]:
    """Samples by counter."""
    if counts is not None:
        rows = {"sent": counts.sent, "failed": counts.failed, "given_up": counts.given_up}
        yield "tidegate_budget_alerts_total", [((result,), float(number)) for result, number in rows.items()]


def alert_rows(counts: AlertCounts | None) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge."""
    if counts is not None:
        yield "tidegate_budget_alerts_looked_timestamp_seconds", [((), counts.looked_unix)]
