"""Limits in SQL."""

from typing import Any

import sqlalchemy as sa

from tenancy.accounts import LimitRecord
from tenancy.directory_ports import Within
from tenancy.limits import Level, Limit, LimitWindow, Meter, Scope, state_key, window_named
from tenancy.stores import rules
from tenancy.stores.sql.schema import api_key, organisation, project, tenant, usage_limit
from tenancy.stores.sql.transaction import Writer


class SqlLimits:
    """Limits of a directory in SQL (`tenancy.directory_ports.LimitStore`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def page(self, within: Within, after: str, limit: int) -> list[LimitRecord]:
        wanted = sa.select(usage_limit) if within is None else sa.select(usage_limit).where(usage_limit.c.tenant == within)
        return list(map(limit_of, await self._writer.page(wanted, usage_limit.c.id, after, limit)))

    async def get(self, within: Within, scope: Scope, meter: Meter, window: LimitWindow) -> LimitRecord:
        row = await self._writer.first(sa.select(usage_limit).where(usage_limit.c.id == state_key(scope, meter, window)))
        if row is None or not rules.reaches(within, row["tenant"]):
            raise rules.no_limit(scope, meter, window)
        return limit_of(row)

    async def put(self, within: Within, limit: Limit, version: int) -> LimitRecord:
        await self._writer.begin()
        owner = await self._owner(within, limit.scope)
        key = rules.key_of_limit(limit)
        values = {name: getattr(limit, name) for name in ("amount", "burst", "soft", "raised_to", "raised_until_unix", "zone")}
        if version:
            await self._writer.replace(f"the limit {key!r}", usage_limit, usage_limit.c.id == key, version, values)
            return LimitRecord(limit, owner, version + 1)
        if await self._writer.count(usage_limit, usage_limit.c.id == key):
            raise rules.changed(f"the limit {key!r}")
        place = {"id": key, "tenant": owner, "level": limit.scope.level.value, "name": limit.scope.name}
        counted = {"meter": limit.meter.name.lower(), "counted_per": limit.window.value, "version": 1}
        await self._writer.run(sa.insert(usage_limit).values(**place, **counted, **values))
        return LimitRecord(limit, owner)

    async def remove(self, within: Within, scope: Scope, meter: Meter, window: LimitWindow, version: int) -> None:
        await self._writer.begin()
        stored = await self.get(within, scope, meter, window)
        key = rules.key_of_limit(stored.limit)
        if stored.version != version:
            raise rules.changed(f"the limit {key!r}")
        await self._writer.run(sa.delete(usage_limit).where(usage_limit.c.id == key))

    async def _owner(self, within: Within, scope: Scope) -> str:
        rules.check_scope(scope)
        count = self._writer.count
        if scope.level in (Level.GLOBAL, Level.MODEL, Level.ORGANISATION):
            if not rules.reaches(within, ""):
                raise rules.no_organisation(scope.name) if scope.level is Level.ORGANISATION else rules.out_of_reach(scope)
            if scope.level is Level.ORGANISATION and not await count(organisation, organisation.c.name == scope.name):
                raise rules.no_organisation(scope.name)
            return ""
        if scope.level is Level.KEY:
            row = await self._writer.first(sa.select(api_key.c.tenant).where(api_key.c.id == rules.key_id_of(scope)))
            if row is None or not rules.reaches(within, row["tenant"]):
                raise rules.no_key(scope.name)
            return str(row["tenant"])
        owner, place = rules.place_of(scope)
        if not rules.reaches(within, owner) or not await count(tenant, tenant.c.name == owner):
            raise rules.no_tenant(owner)
        if place is not None and not await count(project, (project.c.tenant == owner) & (project.c.name == place)):
            raise rules.no_project(owner, place)
        return owner


def limit_of(row: Any) -> LimitRecord:
    """The limit in a row."""
    limit = Limit(
        scope=Scope(Level(row["level"]), row["name"]),
        meter=Meter[row["meter"].upper()],
        window=window_named(row["counted_per"]),
        amount=row["amount"],
        burst=row["burst"],
        soft=row["soft"],
        raised_to=row["raised_to"],
        raised_until_unix=row["raised_until_unix"],
        zone=row["zone"],
    )
    return LimitRecord(limit, row["tenant"], row["version"])
