"""Registered adapters in SQL, beside the registered backends: the same database, migrations and change counters."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.adapters import MAX_REGISTERED_ADAPTERS, AdaptersFull, AdapterTaken, RegisteredAdapter
from tenancy.stores.sql.schema import change, lora_adapter
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.unchanged import CachedRead

ADAPTERS: Final = "adapters"
"""The row of the change counter."""


class SqlAdapterStore:
    """Registered adapters in SQL (`domain.adapters.AdapterStore`)."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine
        self._version = CachedRead(engine, self._read_version)

    async def version(self) -> int:
        return await self._version()

    async def _read_version(self) -> int:
        async with self._engine.connect() as connection:
            version = await connection.scalar(sa.select(change.c.version).where(change.c.what == ADAPTERS))
        return version or 0

    async def load(self) -> list[RegisteredAdapter]:
        columns = lora_adapter.c
        wanted = sa.select(columns.pool, columns.name, columns.digest, columns.path).order_by(columns.pool, columns.name)
        async with self._engine.connect() as connection:
            rows = await connection.execute(wanted.limit(MAX_REGISTERED_ADAPTERS))
        return [RegisteredAdapter(row.pool, row.name, row.digest, row.path) for row in rows]

    async def add(self, adapter: RegisteredAdapter, now_unix: float) -> None:
        row = {"pool": adapter.pool, "name": adapter.name, "digest": adapter.digest, "path": adapter.path, "registered_unix": now_unix}
        try:
            async with self._engine.begin() as connection:
                await _raise_version(connection)  # first, so that two writers wait for each other and the count below holds
                registered = await connection.scalar(sa.select(sa.func.count()).select_from(lora_adapter)) or 0
                if registered >= MAX_REGISTERED_ADAPTERS:
                    raise AdaptersFull(f"{MAX_REGISTERED_ADAPTERS} adapters are registered already; delete some")
                await connection.execute(sa.insert(lora_adapter).values(**row))
        except IntegrityError:
            raise AdapterTaken(f"pool {adapter.pool!r} has a registered adapter {adapter.name!r} already") from None

    async def remove(self, pool: str, name: str) -> bool:
        columns = lora_adapter.c
        async with self._engine.begin() as connection:
            gone = await connection.execute(sa.delete(lora_adapter).where(columns.pool == pool, columns.name == name))
            if gone.rowcount == 0:
                return False
            await _raise_version(connection)
        return True


async def _raise_version(connection: AsyncConnection) -> None:
    await connection.execute(sa.update(change).where(change.c.what == ADAPTERS).values(version=change.c.version + 1))
