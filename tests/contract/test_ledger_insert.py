"""Booking is counted, not timed: the statements of a transaction are as many for ten events as for thousands."""

import random

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.limits import Level, Scope
from tenancy.stores.sql import SqlUsageQueries, SqlUsageStore
from tenancy.stores.sql.ledger_insert import TOGETHER
from tenancy.usage import BY, Filter, UsageEvent, WriteResult
from tests.usage_events import event, grouped, random_event, sums_of

STATEMENTS_AT_MOST = 16
"""Of a transaction: the mark, days, three insertions, which Postgres makes through temporary tables, the mark again."""


class Statements:
    """Counts the statements that an engine is given; many rows of one statement are one."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.count = 0
        sa.event.listen(engine.sync_engine, "before_cursor_execute", self._count)

    def _count(self, *_: object) -> None:
        self.count += 1

    async def of(self, store: SqlUsageStore, events: list[UsageEvent]) -> int:
        before = self.count
        assert (await store.write(events)).booked == len(events)
        return self.count - before


async def test_statements_do_not_grow_with_rows(sql_engine: AsyncEngine) -> None:
    store, statements = SqlUsageStore(sql_engine), Statements(sql_engine)
    await store.write([event("first", user="ann")])  # reads the labels of the day
    few = await statements.of(store, [event(f"few-{n}", user=f"u{n}") for n in range(10)])
    many = await statements.of(store, [event(f"many-{n}", user=f"u{n % 100}") for n in range(3 * TOGETHER + 10)])
    assert few <= STATEMENTS_AT_MOST
    if sql_engine.dialect.name == "postgresql":
        assert many == few
    else:
        assert many == few + 3, "one for every TOGETHER rows"


@pytest.mark.parametrize("booked", [1, 40, 2 * TOGETHER])
async def test_a_batch_of_which_some_are_booked_adds_the_others_only(sql_engine: AsyncEngine, booked: int) -> None:
    """A batch is sent again after a crash, perhaps cut in another place."""
    events = [random_event(n, random.Random(n)) for n in range(2 * TOGETHER + 100)]
    store, queries = SqlUsageStore(sql_engine), SqlUsageQueries(sql_engine)
    assert await store.write(events[:booked]) == WriteResult(booked, 0)
    assert await store.write(events) == WriteResult(len(events) - booked, booked)
    assert await store.write(events) == WriteResult(0, len(events))
    assert await queries.spent(Scope(Level.GLOBAL, ""), None) == sums_of(events)
    page = await queries.totals(BY, Filter(), None, 5000)
    assert {row.labels: row.sums for row in page.rows} == grouped(events, BY)


async def test_rows_of_a_process_of_an_older_version_get_their_quarters(sql_engine: AsyncEngine) -> None:
    """Such a process moves the mark and not the mark of quarters."""
    store = SqlUsageStore(sql_engine)
    await store.write([event(n) for n in range(5)])
    async with sql_engine.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM usage_quarter")
        await connection.exec_driver_sql("UPDATE usage_mark SET quarter_seq = 0")
    await store.write([event(n) for n in range(5, 8)])
    async with sql_engine.connect() as connection:
        rows = (await connection.exec_driver_sql("SELECT sum(requests) FROM usage_quarter")).all()
    assert [int(row[0]) for row in rows] == [8]
