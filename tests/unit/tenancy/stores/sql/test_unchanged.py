"""What is remembered of a SQLite file is read again after every write, whoever wrote, and only then."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from domain.membership import Member
from tenancy.stores.sql import SqlMemberStore, migrate, open_engine
from tenancy.stores.sql.schema import change
from tenancy.stores.sql.transaction import Joined
from tenancy.stores.sql.unchanged import SETTLED_S, CachedRead, stamp_of

WRITE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    database.execute("UPDATE change SET version = version + 1")
"""


LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    try:
        fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)  # the byte that says that the database is in use
    except OSError:
        sys.exit(3)
"""


class Asked:
    """A database with a value that is remembered, and how often it was read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.engine = open_engine(f"sqlite:///{file}")
        self.reads = 0
        self.later_s = 0.0
        """How much later it is than the machine's clock says."""
        self.value = CachedRead(self.engine, self._read, lambda: time.time() + self.later_s)

    async def _read(self) -> int:
        self.reads += 1
        async with self.engine.connect() as connection:
            return await connection.scalar(sa.select(sa.func.sum(change.c.version))) or 0


@pytest.fixture
async def asked(tmp_path: Path):  # type: ignore[no-untyped-def]  # a fixture that yields
    made = Asked(tmp_path / "tidegate.db")
    await migrate(made.engine)
    yield made
    await made.engine.dispose()


async def test_a_file_that_nobody_writes_is_read_once(asked: Asked) -> None:
    asked.later_s = 2 * SETTLED_S
    first = await asked.value()
    reads = asked.reads
    assert [await asked.value() for _ in range(20)] == [first] * 20
    assert asked.reads <= reads + 1, "the first reading may have been the one that made the index"


async def test_every_write_of_this_and_of_another_process_is_seen_at_the_next_question(asked: Asked) -> None:
    rows = len([row for row in sqlite3.connect(asked.file).execute("SELECT what FROM change")])
    before = await asked.value()
    with sqlite3.connect(asked.file) as database:
        for number in range(1, 40):
            database.execute("UPDATE change SET version = version + 1")
            database.commit()
            assert await asked.value() == before + number * rows
            if number % 13 == 0:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                assert await asked.value() == before + number * rows
    subprocess.run([sys.executable, "-c", WRITE, str(asked.file)], check=True)
    assert await asked.value() == before + 40 * rows


async def test_writes_that_are_further_apart_than_a_tick_are_seen_although_the_time_is_trusted(asked: Asked) -> None:
    asked.later_s = 2 * SETTLED_S
    rows = len([row for row in sqlite3.connect(asked.file).execute("SELECT what FROM change")])
    before = await asked.value()
    for number in range(1, 4):
        subprocess.run([sys.executable, "-c", WRITE, str(asked.file)], check=True)  # a process takes longer than a tick
        assert await asked.value() == before + number * rows


async def test_the_locks_of_this_process_stay(asked: Asked) -> None:
    """Without its lock on the index another process would cut the index, and this one would die of SIGBUS."""
    for asked.later_s in (0.0, 60.0, 60.0):  # the pool keeps a connection from the first reading on
        await asked.value()
    held = subprocess.run([sys.executable, "-c", LOCK, f"{asked.file}-shm"], check=False).returncode
    assert held == 3, "SQLite's own lock of the index is still held"


async def test_what_is_not_committed_is_neither_seen_nor_remembered(asked: Asked) -> None:
    before = await asked.value()
    other = sqlite3.connect(asked.file, isolation_level=None)
    other.execute("BEGIN")
    other.execute("UPDATE change SET version = version + 1 WHERE what = 'keys'")
    stamp = stamp_of(asked.file, time.time() + 60)
    other.execute("ROLLBACK")
    other.close()
    assert stamp is not None
    assert await asked.value() == before


async def test_within_a_transaction_nothing_is_remembered(asked: Asked) -> None:
    async with asked.engine.begin() as connection:
        store = SqlMemberStore(Joined(connection))
        before = await store.version()
        await store.add(Member("p", "b", "http://127.0.0.1:1", "registered"), 0.0)
        assert await store.version() == before + 1


async def test_a_file_that_is_gone_is_an_error_and_not_a_memory(asked: Asked, tmp_path: Path) -> None:
    await asked.value()
    await asked.engine.dispose()
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(SQLAlchemyError):
        await asked.value()


def test_what_has_no_log_or_was_just_written_has_no_stamp(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    assert stamp_of(file, time.time()) is None
    file.write_bytes(b"")
    assert stamp_of(file, time.time() + 60) is None
    log = tmp_path / "a.db-wal"
    log.write_bytes(b"x")
    at = log.stat().st_mtime
    assert stamp_of(file, at + SETTLED_S / 2) is None
    first = stamp_of(file, at + 2 * SETTLED_S)
    assert first is not None
    log.write_bytes(b"xy")
    assert stamp_of(file, at + 60) != first
