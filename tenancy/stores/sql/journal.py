"""Changes of operators in SQL: one transaction holds the change, its audit row and the answer kept for a repeated request.

Writers wait for each other from the first statement on: SQLite by its write lock (`BEGIN IMMEDIATE`), Postgres by the lock on
the row that holds the chain's end. So no other writer can change what a change has read before the change ends.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from domain.clock import WallClock
from tenancy.audit import AuditRow, ChainCheck, Entry, Walk, next_row
from tenancy.journal import JournalAway, Remembered, TooManyRemembered
from tenancy.stores.sql.schema import audit, audit_head, idempotency
from tenancy.stores.sql.transaction import Joined

WITHIN_S: Final = 10.0
"""Longest time for one change; SQLite waits 5 s for another writer."""
REMEMBER_S: Final = 86_400.0
MAX_REMEMBERED: Final = 50_000
"""Idempotency keys within a day; one row has a few hundred bytes."""
MAX_REMEMBERED_OF_ONE: Final = 5_000
"""Idempotency keys of one holder within a day, so that no holder can use up all of them: three a minute, all day."""
PAGE: Final = 2_000
"""Rows read at once while the chain is verified."""


async def append_entries(connection: AsyncConnection, entries: Sequence[tuple[int, Entry]]) -> None:
    """Append entries to the audit chain, within the transaction of a connection.

    Args:
        entries: each with its moment in milliseconds since 1970.

    Raises:
        JournalAway: the chain has no end to append to.
    """
    end = (await connection.execute(sa.select(audit_head).where(audit_head.c.id == 1).with_for_update())).mappings().first()
    if end is None:
        raise JournalAway("the audit's end is missing from the database")
    seq, head, rows = end["seq"], end["hash"], list[dict[str, Any]]()
    for at_unix_ms, entry in entries:
        row = next_row(seq + 1, head, at_unix_ms, entry)
        rows.append({"seq": row.seq, "at_unix_ms": at_unix_ms, "hash": row.hash, **msgspec.structs.asdict(entry)})
        seq, head = row.seq, row.hash
    if rows:
        await connection.execute(sa.insert(audit), rows)
        await connection.execute(sa.update(audit_head).where(audit_head.c.id == 1).values(seq=seq, hash=head))


class SqlChange:
    """One change in SQL (`tenancy.journal.Change`). Stores opened on its `connections` take part in its transaction."""

    def __init__(self, connection: AsyncConnection, now_unix: float, seq: int, head: bytes) -> None:
        self.connections = Joined(connection)
        self._connection = connection
        self._now_unix = now_unix
        self._seq = seq
        self._head = head

    async def write_down(self, entry: Entry) -> None:
        row = next_row(self._seq + 1, self._head, int(self._now_unix * 1000), entry)
        values = {name: getattr(entry, name) for name in Entry.__struct_fields__}
        await self._connection.execute(sa.insert(audit).values(seq=row.seq, at_unix_ms=row.at_unix_ms, hash=row.hash, **values))
        await self._connection.execute(sa.update(audit_head).where(audit_head.c.id == 1).values(seq=row.seq, hash=row.hash))
        self._seq = row.seq
        self._head = row.hash

    async def remembered(self, actor: str, key: bytes) -> Remembered | None:
        where = (idempotency.c.actor == actor) & (idempotency.c.key_digest == key) & (idempotency.c.at_unix > self._now_unix - REMEMBER_S)
        row = (await self._connection.execute(sa.select(idempotency).where(where))).mappings().first()
        if row is None:
            return None
        return Remembered(row["request_digest"], row["status"], row["body"], row["etag"], row["nonce"])

    async def remember(self, actor: str, holder: str, key: bytes, answer: Remembered) -> None:
        await self._connection.execute(sa.delete(idempotency).where(idempotency.c.at_unix <= self._now_unix - REMEMBER_S))
        count = sa.select(sa.func.count()).select_from(idempotency)
        if (await self._connection.scalar(count.where(idempotency.c.holder == holder)) or 0) >= MAX_REMEMBERED_OF_ONE:
            raise TooManyRemembered(
                f"{holder} has used {MAX_REMEMBERED_OF_ONE} idempotency keys within a day, which is all it may", own=True
            )
        if (await self._connection.scalar(count) or 0) >= MAX_REMEMBERED:
            raise TooManyRemembered(f"{MAX_REMEMBERED} idempotency keys were used within a day", own=False)
        row = {
            "holder": holder,
            "actor": actor,
            "key_digest": key,
            "request_digest": answer.request,
            "at_unix": self._now_unix,
            "status": answer.status,
            "body": answer.body,
            "etag": answer.etag,
            "nonce": answer.nonce,
        }
        await self._connection.execute(sa.insert(idempotency).values(**row))


class SqlJournal:
    """Opens changes, and reads the chain (`tenancy.journal.AuditLog`)."""

    def __init__(self, engine: AsyncEngine, wall: WallClock) -> None:
        self._engine = engine
        self._wall = wall

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[SqlChange]:
        """Open a change; it is committed at the end, and rolled back when anything is raised. Raises JournalAway."""
        async with _journal_errors(), asyncio.timeout(WITHIN_S), self._engine.begin() as connection:
            row = (await connection.execute(sa.select(audit_head).where(audit_head.c.id == 1).with_for_update())).mappings().first()
            if row is None:
                raise JournalAway("the audit's end is missing from the database")
            yield SqlChange(connection, self._wall(), row["seq"], row["hash"])

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Joined]:
        """Open a connection for several reads. Raises JournalAway."""
        async with _journal_errors(), asyncio.timeout(WITHIN_S), self._engine.connect() as connection:
            yield Joined(connection)

    async def page(self, after: int, limit: int, tenant: str | None = None) -> list[AuditRow]:
        return await self._rows(sa.select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(limit), tenant)

    async def newest(self, before: int | None, limit: int, tenant: str | None = None, action: str | None = None) -> list[AuditRow]:
        wanted = sa.select(audit) if before is None else sa.select(audit).where(audit.c.seq < before)
        if action is not None:
            wanted = wanted.where((audit.c.action == action) | audit.c.action.startswith(f"{action}.", autoescape=True))
        return await self._rows(wanted.order_by(audit.c.seq.desc()).limit(limit), tenant)

    async def verify(self) -> ChainCheck:
        walk = Walk()
        after = 0
        # the end is read first: rows that come while the walk is under way are left to the next one
        async with self.reading() as joined, joined.connect() as connection:
            end = (await connection.execute(sa.select(audit_head))).mappings().one()
        while rows := [row for row in await self.page(after, PAGE) if row.seq <= end["seq"]]:
            if not await asyncio.to_thread(walk.feed, rows):
                break
            after = rows[-1].seq
        return walk.end(end["seq"], end["hash"])

    async def _rows(self, wanted: "sa.Select[Any]", tenant: str | None) -> list[AuditRow]:
        if tenant is not None:
            wanted = wanted.where(audit.c.tenant == tenant)
        async with self.reading() as joined, joined.connect() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        return [_row(row) for row in rows]


def _row(row: Any) -> AuditRow:
    return AuditRow(row["seq"], row["at_unix_ms"], Entry(**{name: row[name] for name in Entry.__struct_fields__}), row["hash"])


@contextlib.asynccontextmanager
async def _journal_errors() -> AsyncIterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise JournalAway(f"{type(error).__name__}: {error}"[:200]) from error
