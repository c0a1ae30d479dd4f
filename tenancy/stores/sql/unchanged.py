"""Spares processes that follow the database the statements that would find nothing new.

Every worker asks several times a second whether something has changed: keys, backends, adapters, purges, rollouts. On SQLite each question
is a transaction, for which it waits its turn among the writers. But the file system says by itself whether anything was written since:
every transaction of any process writes to the write-ahead log. So `CachedRead` reads a value again only when the log's size or time of
change is another one. A database without such a log, as Postgres, is always asked.

A commit stands in the log before it can be seen, for as long as its sync takes. So what is read for a `CachedRead` waits its turn among
the writers (BEGIN IMMEDIATE, and not `tenancy.stores.sql.transaction.reading`): else the value from before a commit would be remembered
with the log from behind it, until somebody writes again.

The files are looked at and never opened: a process that closes any descriptor of a file loses all its locks on it (fcntl(2)), SQLite's
included. Another process would then take the database for one that nobody uses, and cut the index that this one has mapped: SIGBUS.
"""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from domain.clock import WallClock
from tenancy.stores.sql.transaction import SqlConnections

T = TypeVar("T")

SETTLED_S: Final = 0.1
"""The age from which a time of change is trusted: a second write within one tick of the file system's clock, which is up to 10 ms, has
the time of the first one. git does the same with its index ("racy git")."""

FILE_TIME: Final[WallClock] = time.time  # noqa: TID251 - the times of files are of this clock

Stamp = tuple[int, int, int, int]


def stamp_of(file: Path, now_unix: float) -> Stamp | None:
    """What is different after every transaction on a SQLite file; None where it cannot be had, also shortly after a write."""
    try:
        log = os.stat(f"{file}-wal")
        inode = file.stat().st_ino
    except OSError:
        return None
    return None if now_unix - log.st_mtime < SETTLED_S else (inode, log.st_ino, log.st_size, log.st_mtime_ns)


class CachedRead(Generic[T]):
    """A value that is read from the database, and remembered for as long as nobody writes to the database.

    Args:
        connections: what `read` reads with; the value is remembered only over an engine, since a transaction that is open sees more.
        read: reads the value.
        wall: the time in seconds since the epoch.
    """

    def __init__(self, connections: SqlConnections, read: Callable[[], Awaitable[T]], wall: WallClock = FILE_TIME) -> None:
        is_file = isinstance(connections, AsyncEngine) and connections.dialect.name == "sqlite" and connections.url.database
        self._file = Path(str(is_file)).resolve() if is_file and is_file != ":memory:" else None
        self._read = read
        self._wall = wall
        self._known: tuple[Stamp, T] | None = None

    async def __call__(self) -> T:
        """The value. Raises what `read` raises."""
        # taken before the value is read: what is written meanwhile makes it be read again
        stamp = None if self._file is None else stamp_of(self._file, self._wall())
        if stamp is not None and self._known is not None and self._known[0] == stamp:
            return self._known[1]
        value = await self._read()
        self._known = None if stamp is None else (stamp, value)
        return value
