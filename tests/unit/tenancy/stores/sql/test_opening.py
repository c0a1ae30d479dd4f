"""Tests of opened databases."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.limits import Level
from tenancy.stores.sql import SqlDirectory, SqlSpendReader, SqlUsageQueries, open_engine
from tenancy.stores.sql.opening import SqliteConnection
from tenancy.stores.sql.transaction import reading
from tenancy.usage import Filter
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


async def test_who_only_reads_neither_waits_for_a_writer_nor_keeps_one_waiting(tmp_path: Path) -> None:
    async with counting(tmp_path / "t.db") as engine:
        written, everything = sa.text("INSERT INTO t VALUES (1)"), sa.text("SELECT n FROM t")
        async with engine.begin() as writer:
            await writer.execute(written)
            async with reading(engine) as reader:
                assert (await reader.execute(everything)).all() == []
        async with reading(engine) as reader:
            assert len((await reader.execute(everything)).all()) == 1
            async with engine.begin() as writer:
                await writer.execute(written)
            assert len((await reader.execute(everything)).all()) == 1  # of one moment, whatever is written meanwhile
        async with reading(engine) as reader:
            assert len((await reader.execute(everything)).all()) == 2


async def test_reports_and_the_directory_are_read_while_somebody_writes(tmp_path: Path) -> None:
    async with counting(tmp_path / "t.db") as engine, engine.begin() as writer:
        await writer.execute(sa.text("INSERT INTO t VALUES (1)"))
        directory, usage = SqlDirectory(engine), SqlUsageQueries(engine)
        assert (await directory.load()).version >= 0
        assert await directory.peppers() == frozenset()
        assert (await usage.totals(("tenant", "model"), Filter())).rows == ()
        assert (await usage.events(Filter())).events == ()
        assert await SqlSpendReader(engine).spent_by(Level.TENANT, ["acme"], None) == []


async def test_a_directory_that_does_not_come_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counting(tmp_path / "t.db") as engine:
        directory = SqlDirectory(engine)
        with monkeypatch.context() as patched:
            patched.setattr("tenancy.stores.sql.directory.LOAD_WITHIN_S", 0.0)
            with pytest.raises(TimeoutError):
                await directory.load()
        assert (await directory.load()).version == await directory.version()


async def test_the_counter_of_changes_waits_for_a_commit_that_is_under_way(tmp_path: Path) -> None:
    """Its value is remembered with the log's time of change, and a commit is in the log before it can be seen."""
    file = tmp_path / "t.db"
    await migrated_file(file)
    engine = open_engine(f"sqlite:///{file}")
    directory = SqlDirectory(engine)
    before = await directory.version()
    async with aiosqlite.connect(file, isolation_level=None) as writer:
        await writer.execute("BEGIN IMMEDIATE")
        await writer.execute("UPDATE change SET version = version + 1 WHERE what = 'keys'")
        asked = asyncio.ensure_future(SqlDirectory(engine).version())
        await asyncio.wait((asked,), timeout=0.3)
        assert not asked.done()
        await writer.execute("COMMIT")
        assert await asked == before + 1
    await engine.dispose()
