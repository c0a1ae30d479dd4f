"""Tenants and keys in SQL. Every statement is built by SQLAlchemy with bound values; no text is ever joined into one."""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.keys import KeyRecord
from tenancy.ports import DEFAULT_PROJECT, AlreadyExists, NotFound
from tenancy.stores.sql.schema import api_key, change, project, tenant

KEYS: Final = "keys"


class SqlKeyStore:
    """See `tenancy.ports.KeySource` and `tenancy.ports.KeyAdmin`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def version(self) -> int:
        """See the port."""
        async with self._engine.connect() as connection:
            found = await connection.scalar(sa.select(change.c.version).where(change.c.what == KEYS))
        return found or 0

    async def load(self) -> list[KeyRecord]:
        """See the port."""
        async with self._engine.connect() as connection:
            rows = await connection.execute(sa.select(api_key))
        return [_record(row) for row in rows.mappings()]

    async def create_tenant(self, tenant_id: TenantId, now_unix: float) -> None:
        """See the port."""
        try:
            async with self._engine.begin() as connection:
                await connection.execute(sa.insert(tenant).values(name=tenant_id, created_unix=now_unix))
                await connection.execute(sa.insert(project).values(tenant=tenant_id, name=DEFAULT_PROJECT))
                await _raise_version(connection)
        except IntegrityError:
            raise AlreadyExists(f"tenant {tenant_id!r} exists already") from None

    async def tenants(self) -> list[TenantId]:
        """See the port."""
        async with self._engine.connect() as connection:
            return [TenantId(name) for name in await connection.scalars(sa.select(tenant.c.name).order_by(tenant.c.name))]

    async def add_key(self, record: KeyRecord) -> None:
        """See the port."""
        async with self._engine.begin() as connection:
            where = (project.c.tenant == record.tenant) & (project.c.name == record.project)
            if not await connection.scalar(sa.select(sa.func.count()).select_from(tenant).where(tenant.c.name == record.tenant)):
                raise NotFound(f"no tenant {record.tenant!r}")
            if not await connection.scalar(sa.select(sa.func.count()).select_from(project).where(where)):
                raise NotFound(f"no project {record.project!r} in tenant {record.tenant!r}")
            try:
                await connection.execute(sa.insert(api_key).values(**_row(record)))
            except IntegrityError:
                raise AlreadyExists(f"key {record.id!r} exists already") from None
            await _raise_version(connection)

    async def revoke_key(self, key_id: KeyId, now_unix: float) -> None:
        """See the port."""
        async with self._engine.begin() as connection:
            revoked = sa.func.coalesce(api_key.c.revoked_unix, now_unix)
            done = await connection.execute(sa.update(api_key).where(api_key.c.id == key_id).values(revoked_unix=revoked))
            if done.rowcount == 0:
                raise NotFound(f"no key {key_id!r}")
            await _raise_version(connection)


async def _raise_version(connection: AsyncConnection) -> None:
    await connection.execute(sa.update(change).where(change.c.what == KEYS).values(version=change.c.version + 1))


def _row(record: KeyRecord) -> dict[str, Any]:
    first, *others = record.digests
    return {
        "id": record.id,
        "tenant": record.tenant,
        "project": record.project,
        "label": record.label,
        "kid": record.kid,
        "digest": first,
        "second_digest": others[0] if others else None,
        "created_unix": record.created_unix,
        "expires_unix": record.expires_unix,
        "revoked_unix": record.revoked_unix,
    }


def _record(row: Any) -> KeyRecord:
    digests = (row["digest"],) if row["second_digest"] is None else (row["digest"], row["second_digest"])
    return KeyRecord(
        id=KeyId(row["id"]),
        tenant=TenantId(row["tenant"]),
        project=ProjectId(row["project"]),
        kid=row["kid"],
        digests=digests,
        label=row["label"],
        created_unix=row["created_unix"],
        expires_unix=row["expires_unix"],
        revoked_unix=row["revoked_unix"],
    )
