"""What `GET /v1/key` reads: the limits that only the caller's tenant has, and what was spent this month."""

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import Final

import structlog

from domain.clock import Clock, WallClock
from domain.identity import Caller
from gateway.http.openai.own_key import MonthSpend
from gateway.request.rate_limit_replies import SHARED
from tenancy.grant import Grant
from tenancy.hold import LimitUsage
from tenancy.limits import Group, Level, LimitLine
from tenancy.ports import Counters, CountersAway
from tenancy.usage import LedgerAway, SpendReader, first_of_month

ASK_EVERY_S: Final = 10.0
"""For how long an answer of the ledger is given again: a caller that asks without pause costs the database two questions in this time."""
PATIENCE_S: Final = 2.0
"""How long the ledger may take; the rest of the answer does not wait longer."""
MOST_KEPT: Final = 10_000
"""Callers whose answers are kept; at the bound all are dropped."""

log = structlog.get_logger("tidegate.limits")


def own_lines(grant: Grant) -> tuple[LimitLine, ...]:
    """The limits of the caller's tenant, project and key. Limits of its end users count for each of them separately and are not among
    them, nor are limits that other tenants share."""
    return tuple(line for group in grant.groups("") for line in group.lines if line.limit.scope.level not in SHARED)


async def usages_of(grant: Grant, lines: tuple[LimitLine, ...], counters: Counters) -> Sequence[LimitUsage] | None:
    """How these limits stand; None while the counter store is away."""
    if not lines:
        return ()
    try:
        return await counters.look(Group(grant.holder.tenant, lines))
    except CountersAway:
        return None


class OwnSpend:
    """Says what a caller's key and tenant have spent this month, as the ledger has it.

    Args:
        ledger: None where there is no ledger.
    """

    def __init__(self, ledger: SpendReader | None, clock: Clock, wall: WallClock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._wall = wall
        self._kept: dict[tuple[str, str], tuple[float, MonthSpend | None]] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[MonthSpend | None]] = {}

    async def of(self, caller: Caller) -> MonthSpend | None:
        """The spending of the current month, UTC; None where there is no ledger, or it cannot be asked now.

        Callers that ask at the same time wait for one answer: a slow ledger would else get as many questions as there are connections.
        """
        if self._ledger is None:
            return None
        key = (caller.tenant, caller.key_id)
        until, kept = self._kept.get(key, (0.0, None))
        if self._clock() < until:
            return kept
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(self._ask(self._ledger, caller))
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(asking)

    async def _ask(self, ledger: SpendReader, caller: Caller) -> MonthSpend | None:
        since = first_of_month(dt.datetime.fromtimestamp(self._wall(), dt.UTC).date())
        try:
            async with asyncio.timeout(PATIENCE_S):
                of_tenant = await self._spent(ledger, Level.TENANT, caller.tenant, since)
                of_key = None if caller.by_token else await self._spent(ledger, Level.KEY, caller.key_id, since)
            spend: MonthSpend | None = MonthSpend(f"{since:%Y-%m}", of_tenant, of_key)
        except (LedgerAway, TimeoutError) as error:
            log.warning("a caller is not told its spending: the ledger cannot be asked", why=str(error)[:200] or "it takes too long")
            spend = None
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[caller.tenant, caller.key_id] = (self._clock() + ASK_EVERY_S, spend)
        return spend

    async def _spent(self, ledger: SpendReader, level: Level, name: str, since: dt.date) -> int:
        # the answer may have names that were not asked for
        spent = await ledger.spent_by(level, [name], since)
        return sum(one.amounts.cost_nanousd for one in spent if one.name == name)
