"""Spares processes that follow the database the statements that would find nothing new.

Every worker asks several times a second whether something has changed: keys, backends, adapters, purges, rollouts. On SQLite each question
is a transaction, for which it waits its turn among the writers. But the file says by itself whether anything was written since: the head
of the index of its write-ahead log counts the transactions, whichever process wrote them (https://www.sqlite.org/walformat.html, 2.1). So
`CachedRead` reads a value again only when that head is another one. A database without such a head, as Postgres, is always asked.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.stores.sql.transaction import SqlConnections

T = TypeVar("T")

_HEAD_BYTES: Final = 48
"""The length of the index's head, which is there twice: a writer changes first the one and then the other."""


def stamp_of(file: Path) -> bytes | None:
    """What is different after every transaction on a SQLite file; None where it cannot be had, also while it is being written."""
    try:
        with Path(f"{file}-shm").open("rb") as index:
            head = index.read(2 * _HEAD_BYTES)
        inode = file.stat().st_ino
    except OSError:
        return None
    if len(head) < 2 * _HEAD_BYTES or head[:_HEAD_BYTES] != head[_HEAD_BYTES:]:
        return None
    return inode.to_bytes(8, "little") + head[:_HEAD_BYTES]


class CachedRead(Generic[T]):
    """A value that is read from the database, and remembered for as long as nobody writes to the database.

    Args:
        connections: what `read` reads with; the value is remembered only over an engine, since a transaction that is open sees more.
        read: reads the value.
    """

    def __init__(self, connections: SqlConnections, read: Callable[[], Awaitable[T]]) -> None:
        is_file = isinstance(connections, AsyncEngine) and connections.dialect.name == "sqlite" and connections.url.database
        self._file = Path(str(is_file)).resolve() if is_file and is_file != ":memory:" else None
        self._read = read
        self._known: tuple[bytes, T] | None = None

    async def __call__(self) -> T:
        """The value. Raises what `read` raises."""
        # taken before the value is read: what is written meanwhile makes it be read again
        stamp = None if self._file is None else stamp_of(self._file)
        if stamp is not None and self._known is not None and self._known[0] == stamp:
            return self._known[1]
        value = await self._read()
        self._known = None if stamp is None else (stamp, value)
        return value
