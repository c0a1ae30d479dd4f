"""Copies of the tables of a database into a backup and back (`stores.backup_file`): SQLite or Postgres, consistent while others write.

SQLite is copied by its own backup first, which lets writers go on; Postgres is read in one transaction with the snapshot of its beginning.
The request log is left out, as it is in a file of its own with SQLite: nothing depends on it.
"""

import base64
import contextlib
import datetime as dt
import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenancy.stores.backup_file import BackupError, BackupReader, BackupWriter, RowsDigest, row_line
from tenancy.stores.sql.ledger import add_partition, partition_days
from tenancy.stores.sql.opening import BUSY_MS, known_revisions, migrate, open_engine, revision_in
from tenancy.stores.sql.requests import request_content, request_log
from tenancy.stores.sql.schema import metadata, usage_event

AT_ONCE: Final = 500
"""Rows of one statement of a restore."""
SEEDED: Final = frozenset({"organisation", "change", "usage_mark", "audit_head"})
"""Tables that migrations put rows into."""
_LEFT_OUT: Final = frozenset({request_log.name, request_content.name})


def _copied() -> list[sa.Table]:
    return [table for table in metadata.sorted_tables if table.name not in _LEFT_OUT]


async def copy_tables(engine: AsyncEngine, backup: BackupWriter, scratch: Path) -> str:
    """Write every table into a backup, all as of one moment; returns the schema's revision.

    Args:
        scratch: a folder for the copy of a SQLite file.

    Raises:
        BackupError: the database cannot be read, or its schema is not this version's.
    """
    try:
        async with _snapshot(engine, scratch) as connection:
            revision = await connection.run_sync(revision_in)
            newest = known_revisions()[-1]
            if revision != newest:
                raise BackupError(
                    f"the database's schema has revision {revision!r}, and this version's is {newest!r}: back up with the version that runs"
                )
            for table in _copied():
                with backup.table(str(table.name), tuple(map(str, table.columns.keys()))) as writer:
                    async with connection.stream(sa.select(table)) as rows:
                        async for row in rows:
                            writer.add(row)
    except (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError) as error:
        raise BackupError(f"the database cannot be read: {error}"[:500]) from error
    return revision


@contextlib.asynccontextmanager
async def _snapshot(engine: AsyncEngine, scratch: Path) -> AsyncIterator[AsyncConnection]:
    if engine.dialect.name != "sqlite":
        async with engine.connect() as connection:
            yield await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        return
    copy = scratch / "copy.db"
    _copy_file(Path(str(engine.url.database)), copy)
    own = open_engine(f"sqlite:///{copy}")
    try:
        async with own.connect() as connection:
            yield connection
    finally:
        await own.dispose()


def _copy_file(file: Path, copy: Path) -> None:
    if not file.exists():
        raise BackupError(f"{file} does not exist: is this the folder of the settings file?")
    with (
        contextlib.closing(sqlite3.connect(file, timeout=BUSY_MS / 1000)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


async def restore_database(url: str, backup: BackupReader, *, force: bool) -> None:
    """Make the database that a backup holds. A SQLite file is made beside its place and put there when it is whole.

    Args:
        force: overwrite what the database holds.

    Raises:
        BackupError: the database holds something, or does not hold afterwards what the backup has.
        StoreError: the database cannot be used.
    """
    check_revision(backup)
    engine = open_engine(url)
    try:
        is_file = engine.dialect.name == "sqlite"
        if not force and not (is_file and _is_new(engine)) and (found := await _occupied(engine)):
            raise BackupError(f"the database is not empty: {found}; nothing was changed. Name an empty one, or add --force to overwrite it")
        if not is_file:
            if force:
                await migrate(engine, "base")
            await _fill_tables(engine, backup)
            return
        file = Path(str(engine.url.database))
    finally:
        await engine.dispose()
    made = file.with_name(f".{file.name}.restored")
    _remove_file(made)
    engine = open_engine(f"sqlite:///{made}")
    try:
        await _fill_tables(engine, backup)
        await engine.dispose()  # the last connection that closes moves SQLite's own log into the file
        _remove_file(file)
        made.rename(file)
    except OSError as error:
        raise BackupError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        await engine.dispose()
        _remove_file(made)


def _is_new(engine: AsyncEngine) -> bool:
    return not Path(str(engine.url.database)).exists()


def _remove_file(file: Path) -> None:
    for ending in ("-wal", "-shm", "-journal", ""):
        file.with_name(file.name + ending).unlink(missing_ok=True)


async def _occupied(engine: AsyncEngine) -> str:
    try:
        async with engine.connect() as connection:
            present = set(await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()))
            counts = {
                table.name: await connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
                for table in _copied()
                if table.name in present and table.name not in SEEDED
            }
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise BackupError(f"the database cannot be read: {error}"[:500]) from error
    return ", ".join(f"{count} rows of {name}" for name, count in counts.items() if count)


async def _fill_tables(engine: AsyncEngine, backup: BackupReader) -> None:
    await migrate(engine, backup.manifest.revision)
    try:
        async with engine.begin() as connection:
            tables = await connection.run_sync(_reflected, list(backup.manifest.tables))
            for table in reversed(tables):
                if table.name in SEEDED:
                    await connection.execute(sa.delete(table))
            for table in tables:
                await _fill(connection, table, backup)
                await _compare(connection, table, backup)
    except (SQLAlchemyError, OSError, TimeoutError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise BackupError(f"the backup cannot be written into the database: {type(error).__name__}: {error}"[:500]) from error
    await migrate(engine)


def check_revision(backup: BackupReader) -> None:
    """Refuse a backup of a schema that this version does not know. Raises BackupError."""
    made = backup.manifest
    known = known_revisions()
    if made.revision not in known:
        raise BackupError(
            f"{backup.path} was made by version {made.version} with schema revision {made.revision!r}, and the newest that this "
            f"version knows is {known[-1]!r}: restore it with version {made.version} or a later one"
        )


def _reflected(connection: sa.Connection, names: list[str]) -> list[sa.Table]:
    """The tables as they are at the revision of the backup, which may be older than this version."""
    found = sa.MetaData()
    found.reflect(connection, only=lambda name, _: name in names)
    missing = sorted(set(names) - set(found.tables))
    if missing:
        raise KeyError(f"no table {', '.join(missing)} at this revision")
    return found.sorted_tables


async def _fill(connection: AsyncConnection, table: sa.Table, backup: BackupReader) -> None:
    columns = backup.manifest.tables[table.name].columns
    readers = [_reader(table.columns[name]) for name in columns]
    days: set[dt.date] | None = None
    if table.name == usage_event.name and connection.dialect.name == "postgresql":
        days = await partition_days(connection)
    waiting = backup.lines(table.name)
    while lines := list(itertools.islice(waiting, AT_ONCE)):
        rows: list[dict[str, Any]] = []
        for line in lines:
            values = zip(columns, readers, msgspec.json.decode(line, type=list[Any]), strict=True)
            rows.append({name: None if value is None else read(value) for name, read, value in values})
        if days is not None:
            for day in sorted({row["day"] for row in rows} - days):
                await add_partition(connection, day)
                days.add(day)
        await connection.execute(sa.insert(table), rows)


def _reader(column: "sa.Column[Any]") -> Callable[[Any], Any]:
    kind = column.type.python_type
    if kind is bytes:
        return base64.b64decode
    return dt.date.fromisoformat if kind is dt.date else kind


async def _compare(connection: AsyncConnection, table: sa.Table, backup: BackupReader) -> None:
    entry = backup.manifest.tables[table.name]
    digest = RowsDigest()
    columns: Iterable[sa.Column[Any]] = [table.columns[name] for name in entry.columns]
    async with connection.stream(sa.select(*columns)) as rows:
        async for row in rows:
            digest.add(row_line(row))
    if (digest.rows, digest.in_hex()) != (entry.rows, entry.digest):
        raise BackupError(f"the database has {digest.rows} rows of {table.name} that are not the {entry.rows} of the backup")
