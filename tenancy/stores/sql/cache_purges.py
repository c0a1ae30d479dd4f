"""Purges of the answer cache in SQL."""

from typing import Final

import sqlalchemy as sa

from domain.cache_purges import KEPT_DAYS, CachePurge
from tenancy.stores.sql.schema import cache_purge, change
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.unchanged import CachedRead

PURGES: Final = "cache_purges"
"""The row of the change counter, whose value is the number of the newest purge."""


class SqlCachePurges:
    """Purges in SQL (`domain.cache_purges.CachePurgeStore`)."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine
        self._newest = CachedRead(engine, self._read_newest)

    async def newest(self) -> int:
        return await self._newest()

    async def _read_newest(self) -> int:
        async with self._engine.connect() as connection:
            return await connection.scalar(sa.select(change.c.version).where(change.c.what == PURGES)) or 0

    async def since(self, number: int) -> list[CachePurge]:
        columns = cache_purge.c
        wanted = sa.select(cache_purge).where(columns.number > number).order_by(columns.number)
        async with self._engine.connect() as connection:
            rows = await connection.execute(wanted)
        return [
            CachePurge(
                owner=row.owner,
                model=row.model,
                namespace=row.namespace,
                user=row.end_user,
                before_unix=row.before_unix,
                at_unix=row.at_unix,
            )
            for row in rows
        ]

    async def add(self, purge: CachePurge, now_unix: float) -> int:
        columns = change.c
        async with self._engine.begin() as connection:
            # first, so that two writers wait for each other: whoever reads a number has read every lower one
            await connection.execute(sa.update(change).where(columns.what == PURGES).values(version=columns.version + 1))
            number = await connection.scalar(sa.select(columns.version).where(columns.what == PURGES))
            assert number is not None
            await connection.execute(
                sa.insert(cache_purge).values(
                    number=number,
                    at_unix=now_unix,
                    owner=purge.owner,
                    model=purge.model,
                    namespace=purge.namespace,
                    end_user=purge.user,
                    before_unix=purge.before_unix,
                )
            )
            await connection.execute(sa.delete(cache_purge).where(cache_purge.c.at_unix < now_unix - KEPT_DAYS * 86_400))
        return int(number)
