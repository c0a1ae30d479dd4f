"""API keys in SQL."""

from typing import Any

import msgspec
import sqlalchemy as sa

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.directory_ports import Within
from tenancy.keys import KeyRecord
from tenancy.limits import Level
from tenancy.rights import KeyScope, Role
from tenancy.stores import rules
from tenancy.stores.sql.schema import api_key, project, tenant, usage_limit
from tenancy.stores.sql.transaction import Writer, rights_of, rights_text


class SqlKeys:
    """API keys of a directory in SQL (`tenancy.directory_ports.Keys`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def page(self, within: Within, after: str, limit: int) -> list[KeyRecord]:
        wanted = sa.select(api_key) if within is None else sa.select(api_key).where(api_key.c.tenant == within)
        return list(map(key_of, await self._writer.page(wanted, api_key.c.id, after, limit)))

    async def get(self, within: Within, key_id: KeyId) -> KeyRecord:
        row = await self._writer.first(sa.select(api_key).where(api_key.c.id == key_id))
        if row is None or not rules.reaches(within, row["tenant"]):
            raise rules.no_key(key_id)
        return key_of(row)

    async def create(self, within: Within, record: KeyRecord) -> KeyRecord:
        await self._writer.begin()
        if not rules.reaches(within, record.tenant) or not await self._writer.count(tenant, tenant.c.name == record.tenant):
            raise rules.no_tenant(record.tenant)
        if not await self._writer.count(project, (project.c.tenant == record.tenant) & (project.c.name == record.project)):
            raise rules.no_project(record.tenant, record.project)
        if await self._writer.count(api_key, api_key.c.id == record.id):
            raise rules.taken(f"key {record.id!r}")
        place = {"id": record.id, "tenant": record.tenant, "project": record.project, "created_unix": record.created_unix}
        await self._writer.run(sa.insert(api_key).values(**place, **_values(record)))
        return msgspec.structs.replace(record, version=1)

    async def alive(self, owner: TenantId) -> int:
        return await self._writer.count(api_key, (api_key.c.tenant == owner) & api_key.c.revoked_unix.is_(None))

    async def forget_revoked(self, owner: TenantId, keep: int) -> None:
        gone = sa.select(api_key.c.id).where(api_key.c.tenant == owner, api_key.c.revoked_unix.is_not(None))
        # the newest key to remove; keys that were revoked at the same time are ordered by their id
        last = await self._writer.first(
            gone.add_columns(api_key.c.revoked_unix).order_by(api_key.c.revoked_unix.desc(), api_key.c.id.desc()).offset(keep).limit(1)
        )
        if last is None:
            return
        await self._writer.begin()
        older = api_key.c.revoked_unix < last["revoked_unix"]
        as_old = (api_key.c.revoked_unix == last["revoked_unix"]) & (api_key.c.id <= last["id"])
        these = gone.where(older | as_old)
        await self._writer.run(sa.delete(usage_limit).where(usage_limit.c.level == Level.KEY.value, usage_limit.c.name.in_(these)))
        await self._writer.run(sa.delete(api_key).where(api_key.c.id.in_(these)))

    async def update(self, within: Within, record: KeyRecord) -> KeyRecord:
        await self._writer.begin()
        stored = await self.get(within, record.id)
        await self._writer.replace(f"key {record.id!r}", api_key, api_key.c.id == record.id, record.version, _values(record))
        unchanged = {"tenant": stored.tenant, "project": stored.project, "created_unix": stored.created_unix}
        return msgspec.structs.replace(record, **unchanged, version=stored.version + 1)


def key_of(row: Any) -> KeyRecord:
    """The key in a row."""
    return KeyRecord(
        id=KeyId(row["id"]),
        tenant=TenantId(row["tenant"]),
        project=ProjectId(row["project"]),
        kid=row["kid"],
        digests=(row["digest"],) if row["second_digest"] is None else (row["digest"], row["second_digest"]),
        label=row["label"],
        created_unix=row["created_unix"],
        expires_unix=row["expires_unix"],
        revoked_unix=row["revoked_unix"],
        old_until_unix=row["old_until_unix"],
        disabled=row["disabled"],
        scopes=frozenset(map(KeyScope, row["scopes"].split())),
        roles=frozenset(map(Role, row["roles"].split())),
        rights=rights_of(row["rights"]),
        version=row["version"],
        tags=tuple(sorted(msgspec.json.decode(row["tags"], type=dict[str, str]).items())),
        networks=msgspec.json.decode(row["networks"], type=tuple[str, ...]),
    )


def _values(record: KeyRecord) -> dict[str, Any]:
    first, *previous = record.digests
    return {
        "label": record.label,
        "kid": record.kid,
        "digest": first,
        "second_digest": previous[0] if previous else None,
        "expires_unix": record.expires_unix,
        "revoked_unix": record.revoked_unix,
        "old_until_unix": record.old_until_unix,
        "disabled": record.disabled,
        "scopes": " ".join(sorted(scope.value for scope in record.scopes)),
        "roles": " ".join(sorted(role.value for role in record.roles)),
        "rights": rights_text(record.rights),
        "tags": msgspec.json.encode(dict(record.tags)).decode(),
        "networks": msgspec.json.encode(record.networks).decode(),
    }
