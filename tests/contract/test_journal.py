"""Changes with their audit row, on SQLite and real Postgres."""

import asyncio
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import TenantId
from tenancy.accounts import Tenant
from tenancy.audit import GENESIS, Entry, next_row
from tenancy.directory_ports import EVERYWHERE, AlreadyExists
from tenancy.journal import JournalAway, Remembered, TooManyRemembered
from tenancy.stores.sql import SqlDirectory, SqlJournal
from tenancy.stores.sql import journal as journal_module
from tenancy.stores.sql.schema import audit, audit_head
from tenancy.stores.sql.transaction import SqlConnections
from tests.scale import scaled

ENTRY = Entry("key abcdefghij", "admin", "10.0.0.1", "tenant.create", "tenant/acme", "acme", "", '{"name":"acme"}')


async def make(connections: SqlConnections, name: str) -> None:
    async with SqlDirectory(connections).transaction() as change:
        await change.tenants.create(Tenant(TenantId(name)))


async def tenants(engine: AsyncEngine) -> list[str]:
    async with SqlDirectory(engine).transaction() as change:
        return [one.name for one in await change.tenants.page(EVERYWHERE, "", 10)]


class Wall:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def journal(sql_engine: AsyncEngine, wall: Wall) -> SqlJournal:
    return SqlJournal(sql_engine, wall)


@pytest.mark.req("R55")
async def test_a_change_and_its_row_are_durable_together_or_not_at_all(journal: SqlJournal, sql_engine: AsyncEngine) -> None:
    async with journal.change() as change:
        await make(change.connections, "acme")
        await change.write_down(ENTRY)
    assert [row.entry for row in await journal.page(0, 10)] == [ENTRY]

    class Interrupted(Exception):
        pass

    with pytest.raises(Interrupted):
        async with journal.change() as change:
            await make(change.connections, "other")
            await change.write_down(ENTRY)
            raise Interrupted
    assert await tenants(sql_engine) == ["acme"]
    assert len(await journal.page(0, 10)) == 1
    assert (await journal.verify()).broken_at is None


@pytest.mark.req("R55")
async def test_without_an_audit_that_takes_rows_nothing_changes(journal: SqlJournal, sql_engine: AsyncEngine) -> None:
    async with sql_engine.begin() as connection:
        await connection.execute(sa.schema.DropTable(audit))
    with pytest.raises(JournalAway):
        async with journal.change() as change:
            await make(change.connections, "acme")
            await change.write_down(ENTRY)
    assert await tenants(sql_engine) == []


async def test_what_a_store_refuses_is_not_written_down(journal: SqlJournal) -> None:
    for _ in range(2):
        try:
            async with journal.change() as change:
                await make(change.connections, "acme")
                await change.write_down(ENTRY)
        except AlreadyExists:
            pass
    assert len(await journal.page(0, 10)) == 1


async def test_writers_at_once_make_one_chain(journal: SqlJournal) -> None:
    async def one(n: int) -> None:
        async with journal.change() as change:
            await asyncio.sleep(0)
            await change.write_down(Entry("a", "owner", "", "test", f"t/{n}"))

    await asyncio.gather(*map(one, range(24)))
    rows = await journal.page(0, 100)
    assert [row.seq for row in rows] == list(range(1, 25))
    assert sorted(row.entry.target for row in rows) == sorted(f"t/{n}" for n in range(24))
    found = await journal.verify()
    assert (found.rows, found.broken_at, found.head) == (24, None, rows[-1].hash)


async def test_rows_cannot_be_changed_or_removed_through_sql(journal: SqlJournal, sql_engine: AsyncEngine) -> None:
    async with journal.change() as change:
        await change.write_down(ENTRY)
    for statement in (sa.update(audit).values(actor="nobody"), sa.delete(audit)):
        with pytest.raises(DBAPIError, match="append-only"):
            async with sql_engine.begin() as connection:
                await connection.execute(statement)
    assert (await journal.verify()).broken_at is None


@pytest.mark.req("R55")
async def test_a_long_chain_verifies_and_one_changed_byte_is_found(
    journal: SqlJournal, sql_engine: AsyncEngine, record_property: Any
) -> None:
    rows, head, made = scaled(10_000, 100_000), GENESIS, []
    for seq in range(1, rows + 1):
        row = next_row(seq, head, seq, Entry("a", "owner", "::1", "key.create", f"tenant/acme/key/{seq}", "acme", "", '{"label":"x"}'))
        head = row.hash
        made.append({**{f: getattr(row.entry, f) for f in Entry.__struct_fields__}, "seq": seq, "at_unix_ms": seq, "hash": row.hash})
    async with sql_engine.begin() as connection:
        for start in range(0, rows, 1000):
            await connection.execute(sa.insert(audit), made[start : start + 1000])
        await connection.execute(sa.update(audit_head).values(seq=rows, hash=head))
    begun = time.perf_counter()
    found = await journal.verify()
    took_s = time.perf_counter() - begun
    record_property("figure", f"{rows} rows verified in {took_s:.2f} s on {sql_engine.dialect.name}; the one changed byte found")
    assert (found.rows, found.head, found.broken_at) == (rows, head, None)

    at = rows * 2 // 3
    async with sql_engine.begin() as connection:  # as somebody would who has the whole database
        if sql_engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("DROP TRIGGER audit_no_update")
        else:
            await connection.exec_driver_sql("ALTER TABLE audit DISABLE TRIGGER audit_append_only")
        await connection.execute(sa.update(audit).where(audit.c.seq == at).values(after='{"label":"y"}'))
    assert (await journal.verify()).broken_at == at


async def test_pages_go_both_ways_and_by_tenant(journal: SqlJournal) -> None:
    for n in range(6):
        async with journal.change() as change:
            await change.write_down(Entry("a", "owner", "", "test", f"t/{n}", tenant="acme" if n % 2 else "other"))
    assert [r.seq for r in await journal.newest(None, 2)] == [6, 5]
    assert [r.seq for r in await journal.newest(5, 2)] == [4, 3]
    assert [r.seq for r in await journal.page(0, 10, "acme")] == [2, 4, 6]
    assert [r.seq for r in await journal.newest(6, 10, "acme")] == [4, 2]


async def test_an_answer_is_remembered_for_a_day(journal: SqlJournal, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Remembered(b"r" * 32, 201, '{"id":"x"}', '"etag"', nonce=b"n" * 16)
    async with journal.change() as change:
        assert await change.remembered("a", b"k" * 32) is None
        await change.remember("a", "a", b"k" * 32, answer)
    wall.now += 86_399
    async with journal.change() as change:
        assert await change.remembered("a", b"k" * 32) == answer
        assert await change.remembered("b", b"k" * 32) is None, "keys are each caller's own"
    monkeypatch.setattr(journal_module, "MAX_REMEMBERED", 1)
    with pytest.raises(TooManyRemembered):
        async with journal.change() as change:
            await change.remember("a", "a", b"l" * 32, answer)
    wall.now += 2
    async with journal.change() as change:
        assert await change.remembered("a", b"k" * 32) is None
        await change.remember("a", "a", b"k" * 32, answer)


async def test_nobody_uses_up_what_others_need_remembered(journal: SqlJournal, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Remembered(b"r" * 32, 201, "{}")
    monkeypatch.setattr(journal_module, "MAX_REMEMBERED_OF_ONE", 3)
    for n in range(3):
        async with journal.change() as change:
            await change.remember(f"key {n}", "tenant acme", b"k" * 32, answer)
    with pytest.raises(TooManyRemembered, match="tenant acme has used 3 idempotency keys") as raised:
        async with journal.change() as change:
            await change.remember("key new", "tenant acme", b"k" * 32, answer)
    assert raised.value.own
    async with journal.change() as change:
        await change.remember("bootstrap", "bootstrap", b"k" * 32, answer)
        assert await change.remembered("key 1", b"k" * 32) == answer, "what is remembered stays"
    wall.now += 86_401
    async with journal.change() as change:
        await change.remember("key new", "tenant acme", b"k" * 32, answer)
