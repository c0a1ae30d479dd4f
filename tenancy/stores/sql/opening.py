"""The opening of a store by its URL (`open_engine`), and the migration of its schema to this version (`migrate`).

Several processes may start at once on an empty database, so a migration holds a lock that ends with its connection: SQLite's
write lock, a Postgres advisory lock.
"""

import asyncio
import contextlib
import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiosqlite
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tenancy.stores.sql.transaction import READS_ONLY

if TYPE_CHECKING:
    from alembic.config import Config

BUSY_MS: Final = 5_000
"""How long a SQLite writer waits for another."""

MIGRATION_BUSY_MS: Final = 120_000
"""How long a SQLite migration waits for that of another process. It takes milliseconds on a quiet machine and many seconds on a busy one,
and a process that gave up would not start."""

CONNECT_S: Final = 5.0
"""Longest wait for a connection to Postgres; a host that is gone does not refuse, it is silent."""

ADVISORY_LOCK: Final = 0x7469_6465_6761_7465
"""Postgres advisory lock held while migrating; the bytes spell the project's name."""


class StoreError(Exception):
    """The database cannot be used; the message says which, why, and what to do."""


class StoreAway(StoreError):
    """The database cannot be reached now."""


class RollingBack(sqlite3.Connection):
    """A connection of sqlite3 whose transaction ends with it.

    SQLite keeps a closed connection, its transaction and its write lock for as long as a cursor of it lives ("zombie", sqlite3_close_v2).
    A task that is cancelled leaves cursors to the garbage collector, and until it ran every other writer found the database locked.
    """

    def close(self) -> None:
        """Roll back what is not committed, and close."""
        with contextlib.suppress(sqlite3.Error):  # closed already, or a file that fails: closing says so itself
            self.rollback()
        super().close()


class SqliteConnection(aiosqlite.Connection):
    """A connection of aiosqlite whose `close` ends, however often the connection was stopped.

    A second `stop` of aiosqlite's own connection asks a thread that has ended and returns a future that nobody settles, and `close` waits
    for it. SQLAlchemy stops a connection whose closing is cancelled, so a process that ended while it closed one waited for ever.

    Args:
        database: path of the file.
        options: arguments of `sqlite3.connect`.
    """

    def __init__(self, database: str, **options: Any) -> None:
        super().__init__(partial(sqlite3.connect, database, factory=RollingBack, **options), iter_chunk_size=64)
        self._thread.daemon = True  # a process whose loop is gone ends without it
        self._stopped = False

    def stop(self) -> asyncio.Future[Any] | None:
        """Stop the thread behind what was asked of it before; what is returned is done then. None if it was stopped before."""
        if self._stopped:
            return None
        self._stopped = True
        return super().stop()


def open_engine(url: str, most: int = 4) -> AsyncEngine:
    """An engine for `sqlite:///path` or `postgresql://user:password@host/database`; `most` are its connections to Postgres, at most.

    Raises:
        StoreError: the URL has another scheme, or the SQLite file's folder does not exist.
    """
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise StoreError(f"stores.sql: {url!r} is no database URL; write sqlite:///file.db or postgresql://user@host/database") from None
    if parsed.drivername == "sqlite":
        if not parsed.database or not Path(parsed.database).resolve().parent.is_dir():
            raise StoreError(f"stores.sql: the folder of {parsed.database!r} does not exist; create it, or name another file")
        connect_args: dict[str, Any] = {"timeout": BUSY_MS / 1000, "async_creator_fn": SqliteConnection}
        engine = create_async_engine(parsed.set(drivername="sqlite+aiosqlite"), connect_args=connect_args)
        sa.event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        sa.event.listen(engine.sync_engine, "begin", _begin)
        return engine
    if parsed.drivername in ("postgresql", "postgres"):
        return create_async_engine(
            parsed.set(drivername="postgresql+asyncpg"),
            pool_size=2,
            max_overflow=most - 2,
            pool_pre_ping=True,
            connect_args={"timeout": CONNECT_S},
        )
    raise StoreError(f"stores.sql: {parsed.drivername!r} is not supported; use sqlite:/// or postgresql://")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # the driver's own transaction handling begins late and commits DDL; SQLAlchemy's recipe is to switch it off
    connection.isolation_level = None
    cursor = connection.cursor()
    # The mode stays with the file. Changing it needs exclusive access to the file and does not wait for that, so when another process
    # uses the file (to migrate, or to change the mode) the change is left to that process or to the next connection.
    with contextlib.suppress(sqlite3.OperationalError, sa.exc.OperationalError):
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    # a transaction that reads first and writes later could fail half-way when another transaction wrote in between; one that only reads
    # must not keep writers waiting
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(READS_ONLY) else "BEGIN IMMEDIATE")


async def migrate(engine: AsyncEngine, revision: str = "head") -> None:
    """Migrate the schema to this version; several processes may do so at once.

    Raises:
        StoreAway: the database is unreachable.
        StoreError: its schema is newer than this program, or cannot be moved.
    """
    if engine.dialect.name == "sqlite" and engine.url.database not in (None, "", ":memory:"):
        _make_private(str(engine.url.database))
    async with contextlib.AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(engine.connect())
        except Exception as error:  # drivers raise their own, unwrapped, while they connect
            # a file is never away: its errors do not pass by themselves
            raise (StoreError if engine.dialect.name == "sqlite" else StoreAway)(_message(engine, error)) from error
        try:
            if engine.dialect.name == "postgresql":
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
            else:
                await _wait_for_writers(connection, MIGRATION_BUSY_MS)
            await connection.run_sync(_run, revision)
            await connection.commit()
            if engine.dialect.name == "sqlite":
                await _wait_for_writers(connection, BUSY_MS)  # the connection goes back to the pool
        except (SQLAlchemyError, OSError) as error:
            raise StoreError(_message(engine, error)) from error


async def _wait_for_writers(connection: AsyncConnection, milliseconds: int) -> None:
    """Set how long a SQLite connection waits for other writers. Through the driver: a statement would begin a transaction, and wait."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    pragma = f"PRAGMA busy_timeout = {milliseconds}"  # a pragma takes no parameters
    await driver.execute(pragma)


def _make_private(path: str) -> None:
    """Create a missing file readable by its owner only: it will have digests of keys, labels of end users and the audit. An existing
    file keeps its mode, and SQLite gives the files it puts beside it the same mode."""
    with contextlib.suppress(OSError):  # connecting reports the reason
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _message(engine: AsyncEngine, error: Exception) -> str:
    return f"stores.sql: {engine.url.render_as_string(hide_password=True)}: {str(error) or type(error).__name__}"


def _run(connection: sa.Connection, revision: str) -> None:
    from alembic import command

    config = _alembic()
    config.attributes["connection"] = connection
    current = revision_in(connection)
    known = known_revisions()
    if current is not None and current not in known:
        raise StoreError(
            f"stores.sql: the schema has revision {current!r}, and the newest that this version knows is {known[-1]!r}: a newer version "
            "has changed it. This version can neither use it nor change it back. Start the newer version again; or, with every gateway "
            "stopped, restore the backup from before the upgrade: tidegate backup restore FILE --force (with Postgres: into a new "
            "database). What was changed and used since that backup is then gone"
        )
    if revision == "head" or (revision in known and (current is None or known.index(current) < known.index(revision))):
        command.upgrade(config, revision)
    else:
        command.downgrade(config, revision)


def _alembic() -> "Config":
    # imported only here: it takes 0.4 s, which every other command would wait for
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def known_revisions() -> list[str]:
    """The schema's revisions that this version knows, oldest first."""
    from alembic.script import ScriptDirectory

    return [known.revision for known in ScriptDirectory.from_config(_alembic()).walk_revisions()][::-1]


def revision_in(connection: sa.Connection) -> str | None:
    """The revision of a database's schema; None where there is none yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(sa.select(sa.column("version_num")).select_from(sa.table("alembic_version"))).scalar()
    return revision
