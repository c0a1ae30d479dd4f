"""Tests of opened databases."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.stores.sql import open_engine
from tenancy.stores.sql.opening import SqliteConnection
from tests.databases import migrated_file


async def test_closing_a_connection_ends_though_it_was_stopped_meanwhile(tmp_path: Path) -> None:
    connection = await SqliteConnection(str(tmp_path / "t.db"))
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)  # the closing is asked of the thread
    connection.stop()
    await closing
    await connection.close()


def stopped(connection: SqliteConnection) -> asyncio.Future[object]:
    ended = connection.stop()
    assert ended is not None
    return ended


@pytest.mark.parametrize("end", [stopped, SqliteConnection.close])
async def test_a_closed_connection_leaves_the_database_to_others_though_a_cursor_of_it_lives(
    tmp_path: Path, end: Callable[[SqliteConnection], "asyncio.Future[object]"]
) -> None:
    file = str(tmp_path / "t.db")
    connection = SqliteConnection(file, isolation_level=None)
    await connection
    await connection.execute("PRAGMA journal_mode=WAL")
    await connection.execute("CREATE TABLE t (n INTEGER)")
    kept = await connection.execute("BEGIN IMMEDIATE")
    await connection.execute("INSERT INTO t VALUES (1), (2)")
    half_read = await connection.execute("SELECT n FROM t")
    await half_read.fetchone()
    await end(connection)
    async with aiosqlite.connect(file, timeout=0.0) as other:
        await other.execute("INSERT INTO t VALUES (3)")
        await other.commit()
        assert list(await (await other.execute("SELECT n FROM t")).fetchall()) == [(3,)]
    del kept, half_read


@asynccontextmanager
async def counting(file: Path) -> AsyncIterator[AsyncEngine]:
    await migrated_file(file)
    engine = open_engine(f"sqlite:///{file}")
    try:
        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
        yield engine
    finally:
        await engine.dispose()


async def test_a_transaction_that_is_cancelled_at_any_step_leaves_the_database_to_others(tmp_path: Path) -> None:
    async def change(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            await connection.execute(sa.text("SELECT n FROM t"))

    async with counting(tmp_path / "t.db") as engine:
        turns, left = 0, 3  # three changes that end before they are cancelled
        kept = []  # what was raised keeps its traceback, with it the cursors
        while left:
            cancelled = asyncio.ensure_future(change(engine))
            for _ in range(turns):
                await asyncio.sleep(0)
            left -= cancelled.done()
            cancelled.cancel()
            (ended,) = await asyncio.gather(cancelled, return_exceptions=True)
            assert ended is None or isinstance(ended, asyncio.CancelledError)
            kept.append(ended)
            async with aiosqlite.connect(tmp_path / "t.db", timeout=5.0) as other:
                await other.execute("INSERT INTO t VALUES (2)")
                await other.commit()
            turns += 1
