"""Blocks by guard rules in the audit chain, on SQLite and Postgres: each once, whatever is sent again, and bounded in a flood."""

import asyncio
import json
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.audit import AuditRow, Entry
from tenancy.guard_blocks import BLOCK, FURTHER, LATE_MINUTES, MAX_ROWS
from tenancy.stores.sql import SqlJournal, SqlUsageStore, open_engine
from tenancy.stores.sql.schema import audit_blocks, audit_head
from tenancy.usage import GuardBlock, LedgerAway, UsageEvent, WriteResult
from tests.usage_events import FIRST_MS, event

KEYS = GuardBlock("keys", "aws_key", "input", "0123456789abcdef")
NOW = FIRST_MS / 1000


def block(n: int | str, minute: int = 0, **fields: Any) -> UsageEvent:
    return event(n, at_unix_ms=FIRST_MS + minute * 60_000, outcome="guard_blocked", closing="release", **{"blocked": KEYS, **fields})


@pytest.fixture
def store(sql_engine: AsyncEngine) -> SqlUsageStore:
    return SqlUsageStore(sql_engine)


@pytest.fixture
def journal(sql_engine: AsyncEngine) -> SqlJournal:
    return SqlJournal(sql_engine, lambda: NOW)


async def rows(journal: SqlJournal, **only: Any) -> list[AuditRow]:
    found = await journal.newest(None, 10_000, **only)
    assert (await journal.verify()).broken_at is None
    return found[::-1]


def requests(found: list[AuditRow]) -> list[str]:
    return [json.loads(row.entry.after)["request_id"] for row in found if row.entry.action == BLOCK]


@pytest.mark.req("R55")
async def test_a_block_is_in_the_chain_once_however_often_its_usage_is_sent(store: SqlUsageStore, journal: SqlJournal) -> None:
    assert await store.write([block(1), event(2), block(3, tenant="bolt", key_id="k2")]) == WriteResult(3, 0)
    assert await store.write([block(1), block(1), block(4), event(2)]) == WriteResult(1, 3)
    async with journal.change() as change:  # changes of operators go on in the same chain
        await change.write_down(Entry("bootstrap", "owner", "", "key.create", "tenant/acme/key/k9", "acme"))
    assert await store.write([block(5), block(5)]) == WriteResult(1, 1)
    found = await rows(journal)
    assert requests(found) == ["req-1", "req-3", "req-4", "req-5"]
    assert [row.entry.action for row in found] == [BLOCK, BLOCK, BLOCK, "key.create", BLOCK]
    assert (found[1].entry.actor, found[1].entry.tenant, found[1].at_unix_ms) == ("key k2@bolt", "bolt", FIRST_MS)


async def test_rows_are_found_by_action_and_tenant(store: SqlUsageStore, journal: SqlJournal) -> None:
    await store.write([block(1), block(2, tenant="bolt")])
    async with journal.change() as change:
        await change.write_down(Entry("bootstrap", "owner", "", "guards.other", "x", "acme"))
        await change.write_down(Entry("bootstrap", "owner", "", "key.create", "tenant/acme/key/k9", "acme"))
    assert requests(await rows(journal, action="guard")) == ["req-1", "req-2"]
    assert requests(await rows(journal, action="guard.block", tenant="bolt")) == ["req-2"]
    assert len(await rows(journal, action="key")) == 1
    assert await rows(journal, action="guard.b") == await rows(journal, action="gu%") == []


async def test_a_flood_has_a_bounded_number_of_rows_and_every_block_is_counted(store: SqlUsageStore, journal: SqlJournal) -> None:
    flood = [block(n, minute=n % 2) for n in range(1000)]
    for start in range(0, len(flood), 300):
        await store.write(flood[start : start + 300])
    await store.write([block("other", tenant="bolt")])
    assert await store.sum_up_blocks(NOW + 60 * LATE_MINUTES - 1) == 0, "the minutes may go on"
    of_acme = await rows(journal, tenant="acme")
    assert len(of_acme) == 2 * MAX_ROWS
    assert await store.sum_up_blocks(NOW + 60 * (LATE_MINUTES + 1)) == 2
    assert await store.sum_up_blocks(NOW + 60 * (LATE_MINUTES + 9)) == 0, "once"
    sums = [json.loads(row.entry.after) for row in await rows(journal, action=FURTHER)]
    assert sums == [{"blocks": 500 - MAX_ROWS, "minute_unix": int(NOW) + 60 * minute} for minute in (0, 1)]
    assert requests(await rows(journal, tenant="bolt")) == ["req-other"], "a flood of one tenant hides no block of another"


async def test_blocks_that_are_booked_late_begin_their_minute_again(store: SqlUsageStore, journal: SqlJournal) -> None:
    for part in range(2):
        await store.write([block(f"{part}-{n}") for n in range(MAX_ROWS + 5)])
        assert await store.sum_up_blocks(NOW + 3600) == 1
    assert [json.loads(row.entry.after)["blocks"] for row in await rows(journal, action=FURTHER)] == [5, 5]
    assert len(await rows(journal, action=BLOCK)) == 2 * MAX_ROWS


async def test_writers_at_once_write_each_block_once(sql_engine: AsyncEngine, journal: SqlJournal) -> None:
    url = sql_engine.url.render_as_string(hide_password=False).replace("+aiosqlite", "").replace("+asyncpg", "")
    engines = [open_engine(url) for _ in range(3)]
    events = [block(n, minute=n % 20) for n in range(100)]

    async def writer(n: int) -> None:
        own = SqlUsageStore(engines[n])
        for start in range(0, len(events), 20):
            await own.write(events[start : start + 20])
            await own.sum_up_blocks(NOW)

    await asyncio.gather(*map(writer, range(3)))
    for engine in engines:
        await engine.dispose()
    assert sorted(requests(await rows(journal))) == sorted(one.request_id for one in events)


async def test_usage_with_a_block_waits_where_the_audit_takes_no_row(store: SqlUsageStore, sql_engine: AsyncEngine) -> None:
    async with sql_engine.begin() as connection:
        end = (await connection.execute(sa.select(audit_head))).mappings().one()
        await connection.execute(sa.delete(audit_head))
    with pytest.raises(LedgerAway, match="audit's end"):
        await store.write([event(1), block(2)])
    async with sql_engine.begin() as connection:
        await connection.execute(sa.insert(audit_head).values(**end))
        assert await connection.scalar(sa.select(sa.func.count()).select_from(audit_blocks)) == 0
    assert await store.write([event(1), block(2)]) == WriteResult(2, 0), "nothing was lost, and nothing is there twice"
    assert requests(await rows(SqlJournal(sql_engine, lambda: NOW))) == ["req-2"]
