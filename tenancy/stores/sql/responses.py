"""Stored Responses in SQL: sealed before they come here, by tenant and id, with the bytes of each tenant beside.

A conversation is read by one recursive query, which stops at a Response that is gone or past its time, and at the bounds of
`tenancy.responses`. `stored_bytes` changes in the transaction of each write, by what the write did; a tenant's writers wait for each other
at its row.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.clock import WallClock
from domain.identity import TenantId
from tenancy.background import BackgroundResponse, TooManyInBackground
from tenancy.conversations import AddedItems
from tenancy.responses import (
    CHAT_PREFIX,
    MAX_CHAIN_BYTES,
    MAX_TURNS,
    ConversationTooLong,
    NoRoomForResponses,
    ResponseChain,
    ResponsesAway,
    ResponseSealer,
    StoredResponse,
)
from tenancy.stores.sql.schema import cache_purge, metadata, retired_tenant
from tenancy.stores.sql.schema_background import background_response, forgotten_background, remove_background
from tenancy.stores.sql.schema_conversations import (
    conversation,
    conversation_is_of,
    conversations_of_users,
    forgotten_conversations,
    remove_conversations,
)
from tenancy.stores.sql.schema_feedback import erased_feedback, forgotten_feedback, past_feedback
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.upsert import insert_into

READ_WITHIN_S: Final = 5.0
WRITE_WITHIN_S: Final = 10.0
"""The caller waits for the end of its answer meanwhile. SQLite's writers wait 5 s for each other."""
SWEPT_AT_ONCE: Final = 500
"""Rows that one transaction of a sweep removes: writers wait no longer for it than for each other."""

_CHATS: Final = sa.func.substr(sa.literal_column("id"), *map(sa.literal_column, ("1", f"{len(CHAT_PREFIX)}"))) == sa.literal_column(
    f"'{CHAT_PREFIX}'"
)
"""The rows of chat completions: without parameters, since it is the condition of their index, too."""

stored_response = sa.Table(
    "stored_response",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("bytes_before", sa.BigInteger, nullable=False),
    sa.Column("created_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float, nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Column("kid", sa.String(32), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Index("stored_response_by_end", "expires_unix"),
    sa.Index("stored_response_by_user", "end_user", "tenant"),
    # the migration, which creates it, has the condition for Postgres too; said here, it would import Postgres' dialect into every process
    sa.Index("stored_chats", "tenant", "created_unix", sqlite_where=_CHATS),
)
"""`kid` is the id of the pepper that sealed the row; `bytes` is the size of `sealed`. No index begins with the tenant:
before it has statistics, Postgres would read all rows of a tenant through such an index for each turn of a conversation; that of chats has
no row of a conversation."""

stored_bytes = sa.Table(
    "stored_bytes",
    metadata,
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
"""The sum of `stored_response.bytes` of each tenant, and of the bytes of its conversations."""

# The statements of a write, made once: to make them takes SQLAlchemy twice as long as to run them.
_TENANT, _SIZE = sa.bindparam("owner", type_=sa.String), sa.bindparam("size", type_=sa.BigInteger)
_BEGUN = sa.bindparam("begun", type_=sa.Float)
_INSERT: Final = sa.insert(stored_response)
_MORE_BYTES: Final = (
    sa.update(stored_bytes)
    .where(stored_bytes.c.tenant == _TENANT, stored_bytes.c.bytes + _SIZE <= sa.bindparam("most", type_=sa.BigInteger))
    .values(bytes=stored_bytes.c.bytes + _SIZE)
)
_TENANT_GONE: Final = sa.exists().where(retired_tenant.c.name == _TENANT)
_USER_ERASED: Final = sa.exists().where(
    cache_purge.c.owner == _TENANT,
    cache_purge.c.end_user == sa.bindparam("user", type_=sa.String),
    cache_purge.c.model == "",
    cache_purge.c.namespace == "",
    cache_purge.c.at_unix >= _BEGUN,
    sa.or_(cache_purge.c.before_unix.is_(None), cache_purge.c.before_unix > _BEGUN),
)
_IS_GONE: Final = sa.select(_TENANT_GONE)
_IS_ERASED: Final = sa.select(sa.or_(_TENANT_GONE, _USER_ERASED))

log = structlog.get_logger("tidegate.responses")


class SqlResponses:
    """Stored Responses in SQL (`tenancy.responses.ResponseStore`).

    Args:
        sealer: seals and opens what is kept.
        wall: seconds since the epoch.
    """

    def __init__(self, engine: SqlConnections, sealer: ResponseSealer, wall: WallClock) -> None:
        self._engine = engine
        self._sealer = sealer
        self._wall = wall

    async def add(self, new: StoredResponse, max_bytes: int) -> None:
        sealed = self._sealer.seal(new)
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            if await erased(connection, new):
                return
            if not await take_room(connection, new.tenant, len(sealed), max_bytes):
                await remove_past(connection, new.tenant, self._wall())
                if not await take_room(connection, new.tenant, len(sealed), max_bytes):
                    raise NoRoomForResponses
            await insert_response(connection, new, sealed, self._sealer.kid)

    async def get(self, tenant: TenantId, response_id: str) -> StoredResponse | None:
        wanted = sa.select(stored_response).where(self._is(tenant, response_id))
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            row = (await connection.execute(wanted)).mappings().first()
        return None if row is None else self._opened(row)

    async def chain(self, tenant: TenantId, response_id: str) -> ResponseChain | None:
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            rows = (await connection.execute(self._path_to(tenant, response_id))).mappings().all()
        if not rows:
            return None
        last = rows[-1]
        size = last["bytes_before"] + last["bytes"]
        if last["turn"] >= MAX_TURNS or size > MAX_CHAIN_BYTES:
            raise ConversationTooLong
        if len(rows) != last["turn"] + 1:
            return None  # a part of it is gone
        turns = [self._opened(row) for row in rows]
        known = [turn for turn in turns if turn is not None]
        return ResponseChain(tuple(known), size) if len(known) == len(turns) else None

    def _path_to(self, tenant: TenantId, response_id: str) -> "sa.Select[Any]":
        """The rows of a conversation, the oldest first; only the newest one where the conversation is too long to be read."""
        column = stored_response.c
        wanted = (column.id, column.previous, column.turn, (column.bytes_before + column.bytes).label("size"))
        path = sa.select(*wanted).where(self._is(tenant, response_id)).cte("path", recursive=True)
        before = sa.select(*wanted).where(
            _is_of(tenant),
            column.id == path.c.previous,
            column.turn < path.c.turn,
            column.expires_unix > self._wall(),
            path.c.turn < MAX_TURNS,
            path.c.size <= MAX_CHAIN_BYTES,
        )
        path = path.union_all(before)
        return sa.select(stored_response).where(_is_of(tenant)).join(path, column.id == path.c.id).order_by(column.turn)

    async def remove(self, tenant: TenantId, response_id: str) -> bool:
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            return await _remove(connection, self._is(tenant, response_id)) > 0

    async def chats(self, tenant: TenantId, after: str, limit: int, *, newest_first: bool) -> list[StoredResponse] | None:
        column = stored_response.c
        wanted = _is_of(tenant) & _CHATS & (column.expires_unix > self._wall())
        place = sa.tuple_(column.created_unix, column.id)
        async with away(READ_WITHIN_S), self._engine.connect() as connection:
            if after:
                last = (await connection.execute(sa.select(column.created_unix, column.id).where(wanted, column.id == after))).one_or_none()
                if last is None:
                    return None
                bound = sa.tuple_(sa.literal(last.created_unix), sa.literal(last.id))
                wanted &= place < bound if newest_first else place > bound
            order = (column.created_unix.desc(), column.id.desc()) if newest_first else (column.created_unix, column.id)
            query = sa.select(stored_response).where(wanted).order_by(*order).limit(limit)
            rows = (await connection.execute(query)).mappings().all()
        opened = [self._opened(row) for row in rows]
        return [one for one in opened if one is not None]

    async def replace(self, stored: StoredResponse, max_bytes: int) -> bool:
        sealed = self._sealer.seal(stored)
        column = stored_response.c
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            here = self._is(stored.tenant, stored.id)
            had = await connection.scalar(sa.select(column.bytes).where(here).with_for_update())
            if had is None:
                return False
            if not await take_room(connection, stored.tenant, len(sealed) - had, max_bytes):
                raise NoRoomForResponses
            changed = {"sealed": sealed, "bytes": len(sealed), "kid": self._sealer.kid}
            await connection.execute(sa.update(stored_response).where(here).values(changed))
        return True

    def _is(self, tenant: TenantId, response_id: str) -> "sa.ColumnElement[bool]":
        column = stored_response.c
        return _is_of(tenant) & (column.id == response_id) & (column.expires_unix > self._wall())

    def _opened(self, row: Any) -> StoredResponse | None:
        kept = self._sealer.opened(row["sealed"], row["kid"], row["tenant"], row["id"])
        if kept is None:
            log.warning("a stored Response cannot be opened", tenant=row["tenant"], response=row["id"], pepper=row["kid"])
            return None
        same = {name: row[name] for name in _SAME}
        return StoredResponse(**same, response=kept[0], items=kept[1])


_SAME: Final = tuple(name for name in StoredResponse.__struct_fields__ if name not in ("response", "items"))


class SqlResponseKeeper:
    """Removes stored Responses in SQL (`tenancy.responses.ResponseKeeper`)."""

    def __init__(self, engine: SqlConnections, wall: WallClock) -> None:
        self._engine = engine
        self._wall = wall

    async def erase(self, tenant: TenantId, end_users: Collection[str], before_unix: float | None) -> int:
        of_user = _is_of(tenant) & stored_response.c.end_user.in_(end_users)
        if before_unix is not None:
            of_user &= stored_response.c.created_unix < before_unix
        running = background_response.c
        theirs = (running.tenant == tenant) & running.end_user.in_(end_users)
        if before_unix is not None:
            theirs &= running.created_unix < before_unix
        in_conversations = conversations_of_users(tenant, list(end_users), before_unix)
        async with self._engine.begin() as connection:
            count, sums = await remove_background(connection, theirs)
            more, others = await remove_conversations(connection, in_conversations)
            count += more + await _remove(connection, of_user)
            count += (await connection.execute(erased_feedback(tenant, end_users, before_unix))).rowcount
            await give_room(connection, Counter(sums) + Counter(others))  # behind all removals, so that no two of these wait for each other
            return count

    async def sweep(self) -> int:
        column, retired = stored_response.c, sa.select(retired_tenant.c.name)
        removed = 0
        for past in (column.expires_unix <= self._wall(), column.tenant.in_(retired)):
            while True:
                some = sa.select(column.tenant, column.id).where(past).limit(SWEPT_AT_ONCE)
                async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
                    count = await _remove(connection, sa.tuple_(column.tenant, column.id).in_(some))
                removed += count
                if count < SWEPT_AT_ONCE:
                    break
        removed += await self._sweep(background_response, remove_background)
        removed += await self._sweep(conversation, remove_conversations)
        removed += await self._sweep_feedback()
        async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
            await connection.execute(sa.delete(stored_bytes).where(stored_bytes.c.tenant.in_(retired), stored_bytes.c.bytes <= 0))
        return removed

    async def _sweep_feedback(self) -> int:
        removed = 0
        while True:
            async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
                count = (await connection.execute(past_feedback(self._wall(), SWEPT_AT_ONCE))).rowcount
            removed += count
            if count < SWEPT_AT_ONCE:
                return removed

    async def _sweep(
        self, table: sa.Table, remove: Callable[[AsyncConnection, sa.ColumnElement[bool]], Awaitable[tuple[int, Counter[str]]]]
    ) -> int:
        """Remove the rows of a table that have expired or whose tenant is gone, a few in each transaction. Returns how many there were."""
        column, retired = table.c, sa.select(retired_tenant.c.name)
        past = sa.or_(column.expires_unix <= self._wall(), column.tenant.in_(retired))
        some = sa.select(column.tenant, column.id).where(past).limit(SWEPT_AT_ONCE)
        removed = 0
        while True:
            async with away(WRITE_WITHIN_S), self._engine.begin() as connection:
                count, sums = await remove(connection, sa.tuple_(column.tenant, column.id).in_(some))
                await give_room(connection, sums)
            removed += count
            if not sums:  # it has each tenant of whom a row was removed
                return removed


def forgotten_responses(tenant: TenantId) -> tuple[sa.Delete, ...]:
    """What removes all Responses of a tenant that is being deleted, in its transaction."""
    stored = sa.delete(stored_response).where(_is_of(tenant)), sa.delete(stored_bytes).where(stored_bytes.c.tenant == tenant)
    return *forgotten_background(tenant), *forgotten_conversations(tenant), forgotten_feedback(tenant), *stored


def _is_of(tenant: TenantId) -> "sa.ColumnElement[bool]":
    return stored_response.c.tenant == tenant


async def insert_response(connection: AsyncConnection, new: StoredResponse, sealed: bytes, kid: str) -> None:
    """Insert a Response whose bytes are counted already.

    Args:
        kid: the id of the pepper that sealed it.
    """
    row = {
        "tenant": new.tenant,
        "id": new.id,
        "previous": new.previous,
        "turn": new.turn,
        "bytes_before": new.bytes_before,
        "created_unix": new.created_unix,
        "expires_unix": new.expires_unix,
        "end_user": new.end_user,
        "kid": kid,
        "bytes": len(sealed),
        "sealed": sealed,
    }
    await connection.execute(_INSERT, row)


async def erased(connection: AsyncConnection, new: StoredResponse | BackgroundResponse | AddedItems) -> bool:
    """Whether the tenant was deleted, or its end user erased, since the Response began."""
    if not new.end_user:
        return bool(await connection.scalar(_IS_GONE, {"owner": new.tenant}))
    return bool(await connection.scalar(_IS_ERASED, {"owner": new.tenant, "user": new.end_user, "begun": new.created_unix}))


async def take_room(connection: AsyncConnection, tenant: TenantId, size: int, max_bytes: int) -> bool:
    """Count more bytes of a tenant; False, and nothing is counted, where they are too many."""
    if size > max_bytes:
        return False
    more = {"owner": tenant, "size": size, "most": max_bytes}
    if (await connection.execute(_MORE_BYTES, more)).rowcount:
        return True
    await connection.execute(insert_into(stored_bytes, connection.dialect.name).values(tenant=tenant, bytes=0).on_conflict_do_nothing())
    return bool((await connection.execute(_MORE_BYTES, more)).rowcount)


async def _remove(connection: AsyncConnection, where: "sa.ColumnElement[bool]") -> int:
    """Remove Responses, and their bytes from the sums; returns how many there were."""
    column = stored_response.c
    gone = (await connection.execute(sa.delete(stored_response).where(where).returning(column.tenant, column.bytes))).all()
    await give_room(connection, _sums(gone))
    return len(gone)


async def remove_past(connection: AsyncConnection, tenant: TenantId, now_unix: float) -> None:
    """Remove what a tenant has that is past its time, conversations and Responses."""
    _, sums = await remove_conversations(connection, conversation_is_of(tenant) & (conversation.c.expires_unix <= now_unix))
    await _remove(connection, _is_of(tenant) & (stored_response.c.expires_unix <= now_unix))
    await give_room(connection, sums)


async def give_room(connection: AsyncConnection, sums: Mapping[str, int]) -> None:
    """Subtract bytes from the sums of tenants."""
    counted = stored_bytes.c
    for tenant, size in sorted(sums.items()):  # in order, so that two of these never wait for each other
        await connection.execute(sa.update(stored_bytes).where(counted.tenant == tenant).values(bytes=counted.bytes - size))


def _sums(rows: Iterable[Any]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for tenant, size in rows:
        sums[tenant] += size
    return sums


@contextlib.asynccontextmanager
async def away(within_s: float) -> AsyncIterator[None]:
    """Raise ResponsesAway for whatever the database raises, and where it takes longer."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except (NoRoomForResponses, TooManyInBackground):
        raise
    except Exception as error:  # drivers raise their own, unwrapped, while they connect
        raise ResponsesAway(f"{type(error).__name__}: {error}"[:200]) from error
