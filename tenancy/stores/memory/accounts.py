"""Organisations, tenants and projects in memory."""

import msgspec

from domain.identity import ProjectId, TenantId
from tenancy.accounts import Organisation, Project, Tenant
from tenancy.directory_ports import Within
from tenancy.limits import Level, Scope
from tenancy.stores import rules
from tenancy.stores.memory.state import State, forget_limits, page_of


class MemoryOrganisations:
    """Organisations of a directory in memory (`tenancy.directory_ports.Organisations`)."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, after: str, limit: int) -> list[Organisation]:
        return page_of(self._state.organisations, after, limit)

    async def get(self, name: str) -> Organisation:
        organisation = self._state.organisations.get(name)
        if organisation is None:
            raise rules.no_organisation(name)
        return organisation

    async def create(self, organisation: Organisation) -> Organisation:
        if organisation.name in self._state.organisations:
            raise rules.taken(f"organisation {organisation.name!r}")
        return self._put(msgspec.structs.replace(organisation, version=1))

    async def update(self, organisation: Organisation) -> Organisation:
        stored = await self.get(organisation.name)
        if stored.version != organisation.version:
            raise rules.changed(f"organisation {organisation.name!r}")
        return self._put(msgspec.structs.replace(organisation, created_unix=stored.created_unix, version=stored.version + 1))

    async def delete(self, name: str, version: int) -> None:
        if (await self.get(name)).version != version:
            raise rules.changed(f"organisation {name!r}")
        rules.check_organisation_goes(name, sum(tenant.organisation == name for tenant in self._state.tenants.values()))
        forget_limits(self._state, [Scope(Level.ORGANISATION, name)])
        del self._state.organisations[name]
        self._state.dirty = True

    def _put(self, organisation: Organisation) -> Organisation:
        self._state.organisations[organisation.name] = organisation
        self._state.dirty = True
        return organisation


class MemoryTenants:
    """Tenants of a directory in memory (`tenancy.directory_ports.Tenants`)."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, within: Within, after: str, limit: int) -> list[Tenant]:
        return page_of({str(name): tenant for name, tenant in self._state.tenants.items() if rules.reaches(within, name)}, after, limit)

    async def get(self, within: Within, name: TenantId) -> Tenant:
        tenant = self._state.tenants.get(name)
        if tenant is None or not rules.reaches(within, name):
            raise rules.no_tenant(name)
        return tenant

    async def create(self, tenant: Tenant) -> Tenant:
        if tenant.name in self._state.tenants:
            raise rules.taken(f"tenant {tenant.name!r}")
        if tenant.name in self._state.retired:
            raise rules.retired(tenant.name)
        stored = self._put(msgspec.structs.replace(tenant, version=1))
        project = rules.default_project(tenant.name, tenant.created_unix)
        self._state.projects[tenant.name, project.name] = project
        return stored

    async def update(self, within: Within, tenant: Tenant) -> Tenant:
        stored = await self.get(within, tenant.name)
        if stored.version != tenant.version:
            raise rules.changed(f"tenant {tenant.name!r}")
        return self._put(msgspec.structs.replace(tenant, created_unix=stored.created_unix, version=stored.version + 1))

    async def delete(self, within: Within, name: TenantId, version: int) -> None:
        if (await self.get(within, name)).version != version:
            raise rules.changed(f"tenant {name!r}")
        _forget_projects(self._state, name, [project for owner, project in self._state.projects if owner == name])
        forget_limits(self._state, [Scope(Level.TENANT, name), Scope(Level.USER, name)])
        del self._state.tenants[name]
        self._state.retired.add(name)
        self._state.dirty = True

    def _put(self, tenant: Tenant) -> Tenant:
        if tenant.organisation not in self._state.organisations:
            raise rules.no_organisation(tenant.organisation)
        self._state.tenants[tenant.name] = tenant
        self._state.dirty = True
        return tenant


class MemoryProjects:
    """Projects of a directory in memory (`tenancy.directory_ports.Projects`)."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, within: Within, tenant: TenantId, after: str, limit: int) -> list[Project]:
        self._check(within, tenant)
        return page_of({str(name): project for (owner, name), project in self._state.projects.items() if owner == tenant}, after, limit)

    async def get(self, within: Within, tenant: TenantId, name: ProjectId) -> Project:
        self._check(within, tenant)
        project = self._state.projects.get((tenant, name))
        if project is None:
            raise rules.no_project(tenant, name)
        return project

    async def count(self, tenant: TenantId) -> int:
        return sum(owner == tenant for owner, _ in self._state.projects)

    async def create(self, within: Within, project: Project) -> Project:
        self._check(within, project.tenant)
        if (project.tenant, project.name) in self._state.projects:
            raise rules.taken(f"project {project.name!r} of tenant {project.tenant!r}")
        return self._put(msgspec.structs.replace(project, version=1))

    async def update(self, within: Within, project: Project) -> Project:
        stored = await self.get(within, project.tenant, project.name)
        if stored.version != project.version:
            raise rules.changed(f"project {project.name!r} of tenant {project.tenant!r}")
        return self._put(msgspec.structs.replace(project, created_unix=stored.created_unix, version=stored.version + 1))

    async def delete(self, within: Within, tenant: TenantId, name: ProjectId, version: int) -> None:
        if (await self.get(within, tenant, name)).version != version:
            raise rules.changed(f"project {name!r} of tenant {tenant!r}")
        rules.check_project_goes(name)
        _forget_projects(self._state, tenant, [name])
        self._state.dirty = True

    def _check(self, within: Within, tenant: TenantId) -> None:
        if tenant not in self._state.tenants or not rules.reaches(within, tenant):
            raise rules.no_tenant(tenant)

    def _put(self, project: Project) -> Project:
        self._state.projects[project.tenant, project.name] = project
        self._state.dirty = True
        return project


def _forget_projects(state: State, tenant: TenantId, names: list[ProjectId]) -> None:
    keys = [record for record in state.keys.values() if record.tenant == tenant and record.project in names]
    alive = sum(record.revoked_unix is None for record in keys)
    if alive:
        raise rules.keys_left(f"tenant {tenant!r}" if len(names) > 1 else f"project {names[0]!r} of tenant {tenant!r}", alive)
    for record in keys:
        forget_limits(state, [Scope(Level.KEY, record.id)])
        del state.keys[record.id]
    for name in names:
        forget_limits(state, [Scope(level, f"{tenant}/{name}") for level in (Level.PROJECT, Level.USER)])
        del state.projects[tenant, name]
