"""Organisations, tenants and projects in SQL."""

from typing import Any

import msgspec
import sqlalchemy as sa

from domain.identity import ProjectId, TenantId
from tenancy.accounts import Organisation, Project, Tenant
from tenancy.directory_ports import Within
from tenancy.limits import Level
from tenancy.stores import rules
from tenancy.stores.sql.responses import forgotten_responses
from tenancy.stores.sql.schema import api_key, organisation, project, retired_tenant, tenant, usage_limit
from tenancy.stores.sql.transaction import Writer, rights_of, rights_text


class SqlOrganisations:
    """Organisations of a directory in SQL (`tenancy.directory_ports.Organisations`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def page(self, after: str, limit: int) -> list[Organisation]:
        return list(map(organisation_of, await self._writer.page(sa.select(organisation), organisation.c.name, after, limit)))

    async def get(self, name: str) -> Organisation:
        row = await self._writer.first(sa.select(organisation).where(organisation.c.name == name))
        if row is None:
            raise rules.no_organisation(name)
        return organisation_of(row)

    async def create(self, new: Organisation) -> Organisation:
        await self._writer.begin()
        if await self._writer.count(organisation, organisation.c.name == new.name):
            raise rules.taken(f"organisation {new.name!r}")
        await self._writer.run(sa.insert(organisation).values(name=new.name, created_unix=new.created_unix, **_shared(new)))
        return msgspec.structs.replace(new, version=1)

    async def update(self, wanted: Organisation) -> Organisation:
        await self._writer.begin()
        stored = await self.get(wanted.name)
        where = organisation.c.name == wanted.name
        await self._writer.replace(f"organisation {wanted.name!r}", organisation, where, wanted.version, _shared(wanted))
        return msgspec.structs.replace(wanted, created_unix=stored.created_unix, version=stored.version + 1)

    async def delete(self, name: str, version: int) -> None:
        await self._writer.begin()
        if (await self.get(name)).version != version:
            raise rules.changed(f"organisation {name!r}")
        rules.check_organisation_goes(name, await self._writer.count(tenant, tenant.c.organisation == name))
        await _forget_limits(self._writer, (Level.ORGANISATION,), name)
        await self._writer.run(sa.delete(organisation).where(organisation.c.name == name))


class SqlTenants:
    """Tenants of a directory in SQL (`tenancy.directory_ports.Tenants`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def page(self, within: Within, after: str, limit: int) -> list[Tenant]:
        wanted = sa.select(tenant) if within is None else sa.select(tenant).where(tenant.c.name == within)
        return list(map(tenant_of, await self._writer.page(wanted, tenant.c.name, after, limit)))

    async def get(self, within: Within, name: TenantId) -> Tenant:
        row = await self._writer.first(sa.select(tenant).where(tenant.c.name == name)) if rules.reaches(within, name) else None
        if row is None:
            raise rules.no_tenant(name)
        return tenant_of(row)

    async def create(self, new: Tenant) -> Tenant:
        await self._writer.begin()
        if await self._writer.count(tenant, tenant.c.name == new.name):
            raise rules.taken(f"tenant {new.name!r}")
        if await self._writer.count(retired_tenant, retired_tenant.c.name == new.name):
            raise rules.retired(new.name)
        values = {"name": new.name, "created_unix": new.created_unix, "organisation": await self._organisation(new), **_shared(new)}
        await self._writer.run(sa.insert(tenant).values(**values))
        await self._writer.run(sa.insert(project).values(**_project_row(rules.default_project(new.name, new.created_unix))))
        return msgspec.structs.replace(new, version=1)

    async def update(self, within: Within, wanted: Tenant) -> Tenant:
        await self._writer.begin()
        stored = await self.get(within, wanted.name)
        if stored.version != wanted.version:
            raise rules.changed(f"tenant {wanted.name!r}")
        values = {"organisation": await self._organisation(wanted), **_shared(wanted)}
        await self._writer.replace(f"tenant {wanted.name!r}", tenant, tenant.c.name == wanted.name, wanted.version, values)
        return msgspec.structs.replace(wanted, created_unix=stored.created_unix, version=stored.version + 1)

    async def delete(self, within: Within, name: TenantId, version: int) -> None:
        await self._writer.begin()
        if (await self.get(within, name)).version != version:
            raise rules.changed(f"tenant {name!r}")
        alive = await self._writer.count(api_key, (api_key.c.tenant == name) & api_key.c.revoked_unix.is_(None))
        if alive:
            raise rules.keys_left(f"tenant {name!r}", alive)
        await self._writer.run(sa.delete(usage_limit).where(usage_limit.c.tenant == name))
        await self._writer.run(sa.delete(api_key).where(api_key.c.tenant == name))
        await self._writer.run(sa.delete(project).where(project.c.tenant == name))
        for statement in forgotten_responses(name):
            await self._writer.run(statement)
        await self._writer.run(sa.delete(tenant).where(tenant.c.name == name))
        await self._writer.run(sa.insert(retired_tenant).values(name=name))

    async def _organisation(self, owner: Tenant) -> str:
        if not await self._writer.count(organisation, organisation.c.name == owner.organisation):
            raise rules.no_organisation(owner.organisation)
        return owner.organisation


class SqlProjects:
    """Projects of a directory in SQL (`tenancy.directory_ports.ProjectStore`)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def page(self, within: Within, owner: TenantId, after: str, limit: int) -> list[Project]:
        await self._check(within, owner)
        wanted = sa.select(project).where(project.c.tenant == owner)
        return list(map(project_of, await self._writer.page(wanted, project.c.name, after, limit)))

    async def get(self, within: Within, owner: TenantId, name: ProjectId) -> Project:
        await self._check(within, owner)
        row = await self._writer.first(sa.select(project).where(_is(owner, name)))
        if row is None:
            raise rules.no_project(owner, name)
        return project_of(row)

    async def count(self, owner: TenantId) -> int:
        return await self._writer.count(project, project.c.tenant == owner)

    async def create(self, within: Within, new: Project) -> Project:
        await self._writer.begin()
        await self._check(within, new.tenant)
        if await self._writer.count(project, _is(new.tenant, new.name)):
            raise rules.taken(f"project {new.name!r} of tenant {new.tenant!r}")
        await self._writer.run(sa.insert(project).values(**_project_row(new)))
        return msgspec.structs.replace(new, version=1)

    async def update(self, within: Within, wanted: Project) -> Project:
        await self._writer.begin()
        stored = await self.get(within, wanted.tenant, wanted.name)
        label = f"project {wanted.name!r} of tenant {wanted.tenant!r}"
        await self._writer.replace(label, project, _is(wanted.tenant, wanted.name), wanted.version, _shared(wanted))
        return msgspec.structs.replace(wanted, created_unix=stored.created_unix, version=stored.version + 1)

    async def delete(self, within: Within, owner: TenantId, name: ProjectId, version: int) -> None:
        await self._writer.begin()
        label = f"project {name!r} of tenant {owner!r}"
        if (await self.get(within, owner, name)).version != version:
            raise rules.changed(label)
        rules.check_project_goes(name)
        keys = (api_key.c.tenant == owner) & (api_key.c.project == name)
        alive = await self._writer.count(api_key, keys & api_key.c.revoked_unix.is_(None))
        if alive:
            raise rules.keys_left(label, alive)
        of_keys = usage_limit.c.name.in_(sa.select(api_key.c.id).where(keys))
        await self._writer.run(sa.delete(usage_limit).where(usage_limit.c.level == Level.KEY.value, of_keys))
        await _forget_limits(self._writer, (Level.PROJECT, Level.USER), f"{owner}/{name}")
        await self._writer.run(sa.delete(api_key).where(keys))
        await self._writer.run(sa.delete(project).where(_is(owner, name)))

    async def _check(self, within: Within, owner: TenantId) -> None:
        if not rules.reaches(within, owner) or not await self._writer.count(tenant, tenant.c.name == owner):
            raise rules.no_tenant(owner)


def organisation_of(row: Any) -> Organisation:
    """The organisation in a row."""
    return Organisation(name=row["name"], **_record(row))


def tenant_of(row: Any) -> Tenant:
    """The tenant in a row."""
    return Tenant(name=TenantId(row["name"]), organisation=row["organisation"], **_record(row))


def project_of(row: Any) -> Project:
    """The project in a row."""
    return Project(tenant=TenantId(row["tenant"]), name=ProjectId(row["name"]), **_record(row))


def _is(owner: TenantId, name: ProjectId) -> "sa.ColumnElement[bool]":
    return (project.c.tenant == owner) & (project.c.name == name)


def _record(row: Any) -> dict[str, Any]:
    same = {name: row[name] for name in ("label", "disabled", "created_unix", "version")}
    return same | {"rights": rights_of(row["rights"])}


def _shared(record: Organisation | Tenant | Project) -> dict[str, Any]:
    return {"label": record.label, "disabled": record.disabled, "rights": rights_text(record.rights)}


def _project_row(new: Project) -> dict[str, Any]:
    return {"tenant": new.tenant, "name": new.name, "created_unix": new.created_unix, **_shared(new)}


async def _forget_limits(writer: Writer, levels: tuple[Level, ...], name: str) -> None:
    of_levels = usage_limit.c.level.in_([level.value for level in levels])
    await writer.run(sa.delete(usage_limit).where(of_levels, usage_limit.c.name == name))
