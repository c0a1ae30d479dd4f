"""What a caller is told of its spending, and how seldom the ledger is asked for it."""

import asyncio
import datetime as dt
from collections.abc import Collection

from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.http.openai.own_key import MonthSpend
from gateway.request.own_key import ASK_EVERY_S, OwnSpend
from tenancy.limits import Amounts, Level
from tenancy.usage import LedgerAway, Spent

NOVEMBER = 1_795_392_000.0
"""2026-11-23."""


class Ledger:
    """Usage of two tenants and two keys."""

    def __init__(self) -> None:
        self.away = False
        self.asked: list[tuple[Level, dt.date | None]] = []
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def spent_by(
        self, level: Level, names: Collection[str], since: dt.date | None, before: dt.date | None = None, most: int = 1
    ) -> list[Spent]:
        if self.away:
            raise LedgerAway("no answer")
        self.asked.append((level, since))
        await self.let_go.wait()
        spent = {Level.TENANT: {"acme": 500, "bolt": 9_000}, Level.KEY: {"k1": 200, "k2": 300}}[level]
        return [Spent(name, "", Amounts(cost_nanousd=cost)) for name, cost in spent.items()]

    async def spent_since(self, level: Level, names: Collection[str], since_s: int, most: int = 1) -> list[Spent]:
        raise NotImplementedError

    async def spent_per_hour(self, level: Level, names: Collection[str], since_s: int, most: int = 1) -> list[Spent]:
        raise NotImplementedError

    async def booked(self, request_ids: Collection[str]) -> set[str]:
        raise NotImplementedError


def caller(key: str) -> Caller:
    return Caller(TenantId("acme"), ProjectId("default"), KeyId(key))


async def test_a_caller_is_told_the_months_spending_of_its_tenant_and_its_own_key_alone() -> None:
    ledger, now = Ledger(), [0.0]
    spend = OwnSpend(ledger, lambda: now[0], lambda: NOVEMBER)
    assert await spend.of(caller("k1")) == MonthSpend("2026-11", 500, 200)
    assert await spend.of(caller("k2")) == MonthSpend("2026-11", 500, 300)
    assert await spend.of(caller("new")) == MonthSpend("2026-11", 500, 0)
    assert await spend.of(caller("jwt:0123")) == MonthSpend("2026-11", 500, None)
    assert set(ledger.asked) == {(Level.TENANT, dt.date(2026, 11, 1)), (Level.KEY, dt.date(2026, 11, 1))}


async def test_the_ledger_is_asked_once_in_ten_seconds_and_its_outage_is_no_error() -> None:
    ledger, now = Ledger(), [0.0]
    spend = OwnSpend(ledger, lambda: now[0], lambda: NOVEMBER)
    for _ in range(5):
        await spend.of(caller("k1"))
    assert len(ledger.asked) == 2
    ledger.away, now[0] = True, ASK_EVERY_S
    assert await spend.of(caller("k1")) is None
    assert await OwnSpend(None, lambda: 0.0, lambda: NOVEMBER).of(caller("k1")) is None
    ledger.away, now[0] = False, 2 * ASK_EVERY_S
    assert await spend.of(caller("k1")) == MonthSpend("2026-11", 500, 200)


async def test_callers_that_ask_at_the_same_time_are_one_question() -> None:
    ledger = Ledger()
    ledger.let_go.clear()
    spend = OwnSpend(ledger, lambda: 0.0, lambda: NOVEMBER)
    waiting = [asyncio.create_task(spend.of(caller("k1"))) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ledger.asked == [(Level.TENANT, dt.date(2026, 11, 1))]
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    ledger.let_go.set()
    assert set(await asyncio.gather(*waiting[1:])) == {MonthSpend("2026-11", 500, 200)}, "one that leaves takes nothing from the others"
    assert len(ledger.asked) == 2
