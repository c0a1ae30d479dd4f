"""Registered backends in SQL, beside the keys: the same database, migrations and change counter.

The store is here and not in `backends/discovery/` because that package may not know this one's schema; the values come from `domain`.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.membership import MAX_REGISTERED, KvEvents, LoadPush, Member, MembersFull, MemberTaken
from tenancy.stores.sql.schema import backend, change
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.unchanged import CachedRead

BACKENDS: Final = "backends"


class SqlMemberStore:
    """Registered backends in SQL (`domain.membership.MemberStore`)."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine
        self._version = CachedRead(engine, self._read_version)

    async def version(self) -> int:
        return await self._version()

    async def _read_version(self) -> int:
        async with self._engine.connect() as connection:
            version = await connection.scalar(sa.select(change.c.version).where(change.c.what == BACKENDS))
        return version or 0

    async def load(self) -> list[Member]:
        async with self._engine.connect() as connection:
            rows = await connection.execute(sa.select(backend).order_by(backend.c.id).limit(MAX_REGISTERED))
        return [_member(row) for row in rows.mappings()]

    async def add(self, member: Member, now_unix: float) -> None:
        events = member.kv_events
        push = member.load_push
        row = {
            "id": member.id,
            "pool": member.pool,
            "url": member.url,
            "kv_endpoint": events.endpoint if events else None,
            "kv_replay": events.replay if events else None,
            "registered_unix": now_unix,
            "drain_grace_s": member.drain_grace_s,
            "load_endpoint": push.endpoint if push else None,
            "load_ranks": push.ranks if push else None,
        }
        try:
            async with self._engine.begin() as connection:
                await _raise_version(connection)  # first, so that two writers wait for each other and the count below holds
                if (await connection.scalar(sa.select(sa.func.count()).select_from(backend)) or 0) >= MAX_REGISTERED:
                    raise MembersFull(f"{MAX_REGISTERED} backends are registered already; remove some")
                await connection.execute(sa.insert(backend).values(**row))
        except IntegrityError:
            raise MemberTaken(f"backend {member.id!r} is registered already") from None

    async def set_drain(self, backend_id: str, grace_s: float | None) -> bool:
        return await self._write(sa.update(backend).where(backend.c.id == backend_id).values(drain_grace_s=grace_s))

    async def remove(self, backend_id: str) -> bool:
        return await self._write(sa.delete(backend).where(backend.c.id == backend_id))

    async def _write(self, statement: sa.Update | sa.Delete) -> bool:
        async with self._engine.begin() as connection:
            if (await connection.execute(statement)).rowcount == 0:
                return False
            await _raise_version(connection)
        return True


def _member(row: Any) -> Member:
    events = None if row["kv_endpoint"] is None else KvEvents(row["kv_endpoint"], row["kv_replay"])
    push = None if row["load_endpoint"] is None else LoadPush(row["load_endpoint"], row["load_ranks"])
    return Member(row["pool"], row["id"], row["url"], "registered", kv_events=events, drain_grace_s=row["drain_grace_s"], load_push=push)


async def _raise_version(connection: AsyncConnection) -> None:
    await connection.execute(sa.update(change).where(change.c.what == BACKENDS).values(version=change.c.version + 1))
