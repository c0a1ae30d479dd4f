"""Looks at the limits in turn, writes down which percentages are reached, and posts a signed message about each.

Every admin process of a gateway looks; the database lets one of them write an alert, and one at a time post it. A message is posted until a
receiver has answered with a status of 200 to 299, for a day at most, so it may arrive twice: its `id` says so. The request path knows
nothing of alerts.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
import structlog

from domain.clock import WallClock
from gateway.signed_webhook import SIGNATURE, Post, signature
from tenancy.alerts import AlertsAway, AlertStore, BudgetAlert, alert_id, fallen, is_told, name_of, period_of, reached
from tenancy.hold import LimitUsage
from tenancy.limits import Group, Limit, Meter, line_of, meter_name
from tenancy.money import dollars_of
from tenancy.ports import CountersAway

LOOKS_PER_S: Final = 1000
"""Limits that are looked at in a second, at most: a round takes longer where there are more of them."""
LEASE_S: Final = 60.0
"""How long one process has a message to itself."""
FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 3600.0
"""The pause after a failed post doubles, up to this."""
GIVEN_UP_AFTER_S: Final = 86_400.0
KEPT_S: Final = 400 * 86_400.0
"""How long alerts can be listed: a year, and the month before."""
FORGET_EVERY_S: Final = 3600.0
AT_ONCE: Final = 50
MOST_KNOWN: Final = 100_000
"""Ids of alerts that are remembered as written, and of those that are remembered as not written; at the bound all are forgotten, and the
database is asked again."""

log = structlog.get_logger("tidegate.alerts")

Sleep = Callable[[float], Awaitable[None]]
_ORDERED: Final = msgspec.json.Encoder(order="deterministic")


class AlertCounts(msgspec.Struct):
    """What happened since the admin process started."""

    sent: int = 0
    failed: int = 0
    """Posts without success; each is tried again."""
    given_up: int = 0
    looked_unix: float = 0.0
    """When the last whole round of looks ended; 0 before."""


class AlertWatch:
    """Finds and sends budget alerts.

    Args:
        limits: the limits now, each with the tag of its group (`Directory.calendar_limits`).
        look: reads the counters of a group. Raises CountersAway.
        secret: the key of the signature.
        percents: the percentages that are told.
        meters: the meters whose limits are told.
    """

    def __init__(
        self,
        store: AlertStore,
        limits: Callable[[], Iterable[tuple[str, Limit]]],
        look: Callable[[Group], Awaitable[Sequence[LimitUsage]]],
        post: Post,
        secret: bytes,
        *,
        percents: Sequence[int],
        meters: frozenset[Meter],
        every_s: float,
        wall: WallClock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._limits = limits
        self._look = look
        self._post = post
        self._secret = secret
        self._percents = tuple(percents)
        self._meters = meters
        self._every_s = every_s
        self._wall = wall
        self._sleep = sleep
        self._written: set[str] = set()
        self._unwritten: set[str] = set()
        """Of rolling windows: ids that the database need not forget again. A process that has just started knows none, because usage may
        have fallen while no process looked."""
        self.counts = AlertCounts()

    async def run(self) -> None:
        """Look and post until cancelled."""
        forgotten_at = 0.0
        while True:
            try:
                await self.look_round()
                await self.deliver()
                if self._wall() - forgotten_at >= FORGET_EVERY_S:
                    forgotten_at = self._wall()
                    await self._store.forget(forgotten_at - KEPT_S)
            except (AlertsAway, CountersAway) as error:
                log.warning("budget alerts wait", why=str(error)[:200])
            await self._sleep(self._every_s)

    async def look_round(self) -> None:
        """Look at every limit once, and write the percentages that were reached."""
        told = sorted(((tag, limit) for tag, limit in self._limits() if is_told(limit, self._meters)), key=itemgetter(0))
        looked = 0
        for tag, limits in groupby(told, key=itemgetter(0)):
            lines = tuple(line_of(limit, self._wall()) for _, limit in limits)
            for usage in await self._look(Group(tag, lines)):
                await self._note(usage)
            looked += len(lines)
            if looked >= LOOKS_PER_S:
                looked = 0
                await self._sleep(1.0)
        self.counts.looked_unix = self._wall()

    async def _note(self, usage: LimitUsage) -> None:
        now = self._wall()
        period = period_of(usage, now)
        if period == "rolling":
            await self._rearm({alert_id(usage.line, period, percent) for percent in fallen(usage, self._percents)})
        percents = reached(usage, self._percents)
        found = [self._alert(usage, period, percent, percents[-1], now) for percent in percents]
        alerts = [alert for alert in found if alert.id not in self._written]
        if not alerts:
            return
        new = await self._store.add(alerts)
        if len(self._written) > MOST_KNOWN:
            self._written.clear()
        self._written.update(alert.id for alert in alerts)
        self._unwritten.difference_update(alert.id for alert in alerts)
        if new:
            log.warning("a budget reached a threshold", limit=alerts[-1].limit_id, percent=alerts[-1].percent)

    async def _rearm(self, fallen_ids: set[str]) -> None:
        gone = fallen_ids - self._unwritten
        if not gone:
            return
        gone -= await self._store.rearm(gone)  # one whose message still waits is tried again at the next look
        if len(self._unwritten) > MOST_KNOWN:
            self._unwritten.clear()
        self._unwritten |= gone
        self._written -= gone

    def _alert(self, usage: LimitUsage, period: str, percent: int, highest: int, now: float) -> BudgetAlert:
        line = usage.line
        identity = alert_id(line, period, percent)
        body = _ORDERED.encode(message(identity, usage, period, percent, now))
        used = usage.used - usage.held
        told = percent == highest
        return BudgetAlert(
            identity,
            name_of(line.limit),
            period,
            percent,
            line.amount,
            used,
            now,
            body,
            "waiting" if told else "superseded",
            next_try_unix=now if told else None,
        )

    async def deliver(self) -> None:
        """Post the messages that are due, one after the other."""
        for alert in await self._store.claim(self._wall(), LEASE_S, AT_ONCE):
            why = await self._posted(alert.body)
            now, attempts = self._wall(), alert.attempts + 1
            if not why:
                self.counts.sent += 1
                await self._store.note(alert.id, "sent", attempts, None)
            elif now - alert.at_unix >= GIVEN_UP_AFTER_S:
                self.counts.given_up += 1
                log.error("a budget alert could not be delivered", limit=alert.limit_id, percent=alert.percent, attempts=attempts, why=why)
                await self._store.note(alert.id, "given_up", attempts, None)
            else:
                self.counts.failed += 1
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempts - 1, 20))
                log.warning("a budget alert is posted again later", limit=alert.limit_id, in_s=pause_s, why=why)
                await self._store.note(alert.id, "waiting", attempts, now + pause_s)

    async def _posted(self, body: bytes) -> str:
        """Post one message; returns why it failed, empty for success."""
        try:
            status = await self._post(body, {SIGNATURE: signature(self._secret, int(self._wall()), body)})
        except Exception as error:  # noqa: BLE001 - whatever the transport raises, a later attempt may succeed
            return f"{type(error).__name__}: {error}"[:200]
        return "" if 200 <= status < 300 else f"answers {status}"


def message(identity: str, usage: LimitUsage, period: str, percent: int, now_unix: float) -> dict[str, Any]:
    """The message about a percentage that was reached."""
    line = usage.line
    limit, used = line.limit, usage.used - usage.held
    money = limit.meter is Meter.COST_NANOUSD
    return {
        "event": "budget.threshold",
        "id": identity,
        "at": _iso(now_unix),
        "limit": name_of(limit),
        "level": limit.scope.level.value,
        "name": limit.scope.name,
        "meter": meter_name(limit.meter),
        "window": limit.window.value,
        "resets_at": _iso(float(period)) if period.isdigit() else None,
        "threshold_percent": percent,
        "used_percent": round(100 * used / line.amount, 2),
        "used": dollars_of(used) if money else used,
        "amount": dollars_of(line.amount) if money else line.amount,
    }


def _iso(unix: float) -> str:
    return dt.datetime.fromtimestamp(int(unix), dt.UTC).isoformat().replace("+00:00", "Z")
