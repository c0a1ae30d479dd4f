"""Service-level objectives: what share of the requests has to go well, and the alerts on how fast the rest, the error budget, is spent.

An alert compares the share of failures with a multiple of the budget, over a long window (it is real) and a short one (it still goes on):
14.4 times over 1 h spends 2 % of a month's budget in an hour, 6 times over 6 h 5 %; these wake somebody. 3 times over a day and once over
three days spend 10 %; these are for working hours. Windows and multiples are those of the Site Reliability Workbook, chapter 5.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gateway.dashboards.alerts import CAUSES, Alert, AlertGroup

AVAILABILITY: Final = 0.999
"""Requests that are answered, of those that did not fail by the caller's fault; 43 minutes a month."""
PROMISES: Final = 0.95
"""Promises of policies (ttft_slo_s, tpot_slo_s) that are kept."""
WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


class Burn(NamedTuple):
    """A multiple of the error budget, over two windows."""

    times: float
    long: str
    short: str


FAST: Final = (Burn(14.4, "1h", "5m"), Burn(6, "6h", "30m"))
SLOW: Final = (Burn(3, "1d", "2h"), Burn(1, "3d", "6h"))


class ServiceObjective(msgspec.Struct, frozen=True):
    """One objective: the share of `bad` in `all_` must stay below one minus the target."""

    record: str
    """The name of the recorded shares, before `:ratio_rate5m` and so on."""
    bad: str
    all_: str
    """Rates with `WINDOW` in place of the window; both have the same labels."""
    alert: str
    """The name of its alerts, before Fast and Slowly."""
    summary: str

    def recorded(self) -> Iterator[tuple[str, str]]:
        """The shares of failures over each window: the name of the recorded series, and its query."""
        for window in WINDOWS:
            yield f"{self.record}:ratio_rate{window}", f"{self.bad} / {self.all_}".replace("WINDOW", window)

    def alerts(self, target: float) -> Iterator[Alert]:
        """The alert that wakes somebody, and the one for working hours."""
        budget = 1 - target
        yield Alert(
            f"{self.alert}Fast", self._burning(FAST, budget), "2m", "page", f"{self.summary} spends a month's error budget within days"
        )
        yield Alert(
            f"{self.alert}Slowly", self._burning(SLOW, budget), "1h", "ticket", f"{self.summary} spends more error budget than there is"
        )

    def _burning(self, burns: tuple[Burn, ...], budget: float) -> str:
        return " or ".join(
            f"({self._above(burn.long, burn.times * budget)} and {self._above(burn.short, burn.times * budget)})" for burn in burns
        )

    def _above(self, window: str, share: float) -> str:
        return f"{self.record}:ratio_rate{window} > {share:.6g}"


ANSWERED: Final = ServiceObjective(
    "tidegate:requests_failed",
    'sum by (job) (rate(tidegate_class_requests_total{result=~"gateway|engine"}[WINDOW]))',
    'sum by (job) (rate(tidegate_class_requests_total{result!="caller"}[WINDOW]))',
    "AvailabilityBudgetBurns",
    "{{ $value | humanizePercentage }} of the requests fail by the fault of gateway or engines, which",
)
KEPT: Final = ServiceObjective(
    "tidegate:promises_missed",
    'sum by (job, slo) (rate(tidegate_slo_requests_total{met="false"}[WINDOW]))',
    "sum by (job, slo) (rate(tidegate_slo_requests_total[WINDOW]))",
    "PromiseBudgetBurns",
    "{{ $value | humanizePercentage }} of the promises of {{ $labels.slo }} are not kept, which",
)


def alert_groups(availability: float = AVAILABILITY, promises: float = PROMISES) -> tuple[AlertGroup, ...]:
    """Every alert, for these objectives."""
    levels = (*ANSWERED.alerts(availability), *KEPT.alerts(promises))
    return (AlertGroup("tidegate-objectives", levels), *CAUSES)
