"""The open connection that the parts of one change share (`Writer`), with the statements that all of them need.

`Joined` lets stores that open transactions of their own take part in a transaction that is open already. `reading` opens one that only
reads: on SQLite it neither waits for writers nor keeps them waiting, however long it reads.
"""

import contextlib
import functools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.rights import Rights
from tenancy.stores.rules import changed, page_size
from tenancy.stores.sql.schema import change


class SqlConnections(Protocol):
    """The part of SQLAlchemy's `AsyncEngine` that stores need."""

    def connect(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection to read with."""
        ...

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction, committed at the end unless something is raised."""
        ...


class Joined:
    """Hands out one open connection, every time; what is done on it is committed or rolled back with the transaction around it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        yield self._connection

    begin = connect


READS_ONLY: Final = "tidegate_reads_only"
"""The execution option of a connection whose next transaction only reads (`tenancy.stores.sql.opening`)."""


@contextlib.asynccontextmanager
async def reading(connections: SqlConnections) -> AsyncIterator[AsyncConnection]:
    """A connection whose transaction only reads, and sees the database as it is at its first statement (on Postgres: at each statement).
    Where a transaction is open already, it is that one."""
    async with connections.connect() as connection:
        if not connection.in_transaction():
            await connection.execution_options(**{READS_ONLY: True})
        yield connection


COUNTER: Final = "keys"
"""The row of the directory's change counter. It is older than the rest of the directory, and processes of the version before
this one read it."""

_ORDERED: Final = msgspec.json.Encoder(order="deterministic")


class Writer:
    """One open transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._raised = False

    async def begin(self) -> None:
        """Raise the change counter, and so wait for other writers. To be called before anything is looked up for a write."""
        if not self._raised:
            await self._connection.execute(sa.update(change).where(change.c.what == COUNTER).values(version=change.c.version + 1))
            self._raised = True

    async def run(self, statement: sa.Insert | sa.Update | sa.Delete) -> int:
        """Run a statement; returns how many rows it touched."""
        return (await self._connection.execute(statement)).rowcount

    async def first(self, statement: "sa.Select[Any]") -> sa.RowMapping | None:
        """The first row, if there is any."""
        row: sa.RowMapping | None = (await self._connection.execute(statement)).mappings().first()
        return row

    async def count(self, table: sa.Table, where: "sa.ColumnElement[bool]") -> int:
        """How many rows meet the condition."""
        return await self._connection.scalar(sa.select(sa.func.count()).select_from(table).where(where)) or 0

    async def page(self, statement: "sa.Select[Any]", by: "sa.Column[Any]", after: str, limit: int) -> list[sa.RowMapping]:
        """Up to `limit` rows in the order of a column, those after a value of it."""
        rows = await self._connection.execute(statement.where(by > after).order_by(by).limit(page_size(limit)))
        return list(rows.mappings())

    async def replace(self, record: str, table: sa.Table, where: "sa.ColumnElement[bool]", version: int, values: dict[str, Any]) -> None:
        """Change one row that is still of this version. Raises Conflict; `record` names it in words."""
        statement = sa.update(table).where(where, table.c.version == version).values(**values, version=version + 1)
        if await self.run(statement) == 0:
            raise changed(record)


def rights_text(rights: Rights) -> str:
    """Rights as stored: JSON in a fixed order."""
    return _ORDERED.encode(rights).decode()


@functools.lru_cache(maxsize=4096)
def rights_of(text: str) -> Rights:
    """The rights in a text of `rights_text`; accounts whose rights are the same share them."""
    return msgspec.json.decode(text, type=Rights)
