"""The request log in SQL (`tenancy.request_log.RequestStore`): one row per finished request, and one per request whose texts are kept.

The time is the first part of both primary keys. So rows are appended, a page of the newest is read off the end, an id is looked up within
the seconds that it names, and on Postgres the tables can be partitioned by time without another key. Rows are deleted a few at a time,
so that nobody waits for a sweep longer than for another writer.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenancy.request_log import (
    EQUAL_FIELDS,
    OK,
    Cursor,
    LoggedRequest,
    Order,
    RequestFilter,
    RequestLogAway,
    SealedContent,
    began_about_us,
)
from tenancy.stores.sql.ledger_insert import TOGETHER, insert_together
from tenancy.stores.sql.schema import metadata
from tenancy.stores.sql.upsert import insert_into

SWEPT_AT_ONCE: Final = 500
"""Rows that one transaction of a sweep removes."""

request_log = sa.Table(
    "request_log",
    metadata,
    sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("duration_us", sa.BigInteger, nullable=False),
    sa.Column("tenant", sa.String(63), nullable=False),
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("key_id", sa.String(128), nullable=False),
    sa.Column("endpoint", sa.String(64), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("pool", sa.String(256), nullable=False),
    sa.Column("backend", sa.String(256), nullable=False),
    sa.Column("outcome", sa.String(64), nullable=False),
    sa.Column("rule", sa.String(256), nullable=False),
    sa.Column("cache", sa.String(64), nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
    sa.Column("line", sa.Text, nullable=False),
    sa.Index("request_log_by_tenant", "tenant", "at_us"),
    sqlite_with_rowid=False,
)

request_content = sa.Table(
    "request_content",
    metadata,
    sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(63), nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Index("request_content_by_tenant", "tenant", "at_us"),
)
"""`kid` is the id of the pepper that sealed the row."""

_COLUMNS: Final = tuple(column.name for column in request_log.columns)
"""In the order of the fields of `LoggedRequest`."""
assert LoggedRequest.__struct_fields__ == _COLUMNS
_LENGTHS: Final = {
    column.name: column.type.length
    for column in request_log.columns
    if isinstance(column.type, sa.String) and column.type.length is not None
}
"""The longest texts of columns; the line has the whole text."""


class SqlRequests:
    """Requests in SQL."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.kind = engine.dialect.name
        self._engine = engine

    async def prepare(self) -> None:
        """Create the tables where the database has none: a file of its own, or a database that no gateway has migrated."""
        async with self._transaction() as connection:
            await connection.run_sync(lambda inner: metadata.create_all(inner, [request_log, request_content]))

    async def add(self, requests: Sequence[LoggedRequest], contents: Sequence[SealedContent]) -> None:
        into_log = insert_into(request_log, self.kind).on_conflict_do_nothing()
        async with self._transaction() as connection:
            for start in range(0, len(requests), TOGETHER):
                some = requests[start : start + TOGETHER]
                if self.kind == "sqlite":
                    await insert_together(connection, request_log.name, _COLUMNS, list(map(_row, some)), "ON CONFLICT DO NOTHING")
                else:
                    await connection.execute(into_log, list(map(_bounded_row, some)))
            if contents:
                into_content = insert_into(request_content, self.kind).on_conflict_do_nothing()
                await connection.execute(into_content, [_fields(content) for content in contents])

    async def page(self, wanted: RequestFilter, order: Order, after: Cursor | None, limit: int) -> list[LoggedRequest]:
        column = request_log.c
        by = (column.duration_us, column.id) if order == "slowest" else (column.at_us, column.id)
        query = sa.select(request_log).where(*_conditions(wanted)).order_by(by[0].desc(), by[1].desc()).limit(limit)
        if after is not None:
            query = query.where(sa.tuple_(*by) < sa.tuple_(*(sa.literal(part) for part in after)))
        async with self._transaction() as connection:
            return [_request(row) for row in (await connection.execute(query)).mappings()]

    async def get(self, request_id: str) -> LoggedRequest | None:
        bounds = began_about_us(request_id)
        if bounds is None:
            return None
        column = request_log.c
        query = sa.select(request_log).where(column.at_us.between(*bounds), column.id == request_id)
        async with self._transaction() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _request(row)

    async def content(self, request: LoggedRequest) -> SealedContent | None:
        column = request_content.c
        query = sa.select(request_content).where(column.at_us == request.at_us, column.id == request.id)
        async with self._transaction() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else SealedContent(**row)

    async def with_content(self, requests: Sequence[LoggedRequest]) -> set[str]:
        if not requests:
            return set()
        column = request_content.c
        times = [request.at_us for request in requests]
        ids = [request.id for request in requests]
        query = sa.select(column.id).where(column.at_us.between(min(times), max(times)), column.id.in_(ids))
        async with self._transaction() as connection:
            return set((await connection.execute(query)).scalars())

    async def erase(self, tenant: str, end_users: Collection[str], until_us: int) -> int:
        counts = []
        async with self._transaction() as connection:
            for table in (request_content, request_log):
                theirs = (table.c.tenant == tenant) & table.c.end_user.in_(sorted(end_users)) & (table.c.at_us <= until_us)
                counts.append((await connection.execute(sa.delete(table).where(theirs))).rowcount)
        return counts[-1]

    async def sweep(self, now_us: int, most: int) -> int:
        oldest_kept = sa.select(request_log.c.at_us).order_by(request_log.c.at_us.desc()).offset(most).limit(1)
        async with self._transaction() as connection:
            beyond_us = await connection.scalar(oldest_kept)
        removed = 0
        for table in (request_content, request_log):
            past = table.c.expires_us <= now_us
            if beyond_us is not None:
                past |= table.c.at_us <= beyond_us
            some = sa.select(table.c.at_us, table.c.id).where(past).order_by(table.c.at_us).limit(SWEPT_AT_ONCE)
            count = SWEPT_AT_ONCE
            while count >= SWEPT_AT_ONCE:
                async with self._transaction() as connection:
                    gone = sa.delete(table).where(sa.tuple_(table.c.at_us, table.c.id).in_(some))
                    count = (await connection.execute(gone)).rowcount
                removed += count if table is request_log else 0
        return removed

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise RequestLogAway(f"{type(error).__name__}: {error}"[:300]) from error


def _conditions(wanted: RequestFilter) -> "list[sa.ColumnElement[bool]]":
    column = request_log.c
    conditions = [
        column[name].in_({value, value[: _LENGTHS[name]]}) if len(value) > _LENGTHS[name] else column[name] == value
        for name in EQUAL_FIELDS
        if (value := getattr(wanted, name))
    ]
    if wanted.failed:
        conditions.append(column.outcome != OK)
    if wanted.min_duration_us:
        conditions.append(column.duration_us >= wanted.min_duration_us)
    if wanted.since_us:
        conditions.append(column.at_us >= wanted.since_us)
    if wanted.until_us is not None:
        conditions.append(column.at_us < wanted.until_us)
    return conditions


def _fields(content: SealedContent) -> dict[str, Any]:
    return {column.name: getattr(content, column.name) for column in request_content.columns}


def _row(request: LoggedRequest) -> tuple[Any, ...]:
    return (*structs.astuple(request)[:-1], request.line.decode())


def _bounded_row(request: LoggedRequest) -> dict[str, Any]:
    """A row with the beginnings of texts that are too long for their columns: Postgres refuses longer ones."""
    row = dict(zip(_COLUMNS, _row(request), strict=True))
    for name, most in _LENGTHS.items():
        if len(row[name]) > most:
            row[name] = row[name][:most]
    return row


def _request(row: "sa.RowMapping") -> LoggedRequest:
    fields: dict[str, Any] = dict(row)
    fields["line"] = row["line"].encode()
    return LoggedRequest(**fields)
