"""A directory in dictionaries (`MemoryDirectory`), lost with the process: for tests and embedding.

`MemoryRecords` has one dictionary per kind of record, by the record's name or id. A transaction works on a copy that replaces the original
when the transaction ends. Each other class implements the port of one kind of record: organisations, tenants, projects, keys, limits,
prices.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, fields
from typing import TypeVar

import msgspec

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import DEFAULT_ORGANISATION, Contents, LimitRecord, Organisation, Project, Tenant
from tenancy.directory_ports import DirectoryChange, NotFound, Within
from tenancy.keys import KeyRecord
from tenancy.limits import Level, Limit, LimitWindow, Meter, Scope, state_key
from tenancy.prices import Price
from tenancy.stores import rules
from tenancy.stores.rules import page_size

R = TypeVar("R")


def _default() -> dict[str, Organisation]:
    return {DEFAULT_ORGANISATION: Organisation(DEFAULT_ORGANISATION)}


@dataclass(slots=True)
class MemoryRecords:
    """All records of a directory. Records are frozen, so a copy of the dictionaries is a copy of everything."""

    version: int = 1
    dirty: bool = False
    """Whether the open transaction has written."""
    organisations: dict[str, Organisation] = field(default_factory=_default)
    tenants: dict[TenantId, Tenant] = field(default_factory=dict)
    retired: set[TenantId] = field(default_factory=set)
    """Names of deleted tenants."""
    projects: dict[tuple[TenantId, ProjectId], Project] = field(default_factory=dict)
    keys: dict[KeyId, KeyRecord] = field(default_factory=dict)
    limits: dict[str, LimitRecord] = field(default_factory=dict)
    prices: dict[str, Price] = field(default_factory=dict)

    def copy(self) -> "MemoryRecords":
        """A copy for one transaction."""
        copied = MemoryRecords(self.version)
        for attribute in fields(MemoryRecords)[2:]:
            setattr(copied, attribute.name, getattr(self, attribute.name).copy())
        return copied


def page_of(records: dict[str, R], after: str, limit: int) -> list[R]:
    """Up to `limit` records by name, those after `after`."""
    return [records[name] for name in sorted(name for name in records if name > after)[: page_size(limit)]]


def forget_limits(state: MemoryRecords, scopes: Iterable[Scope]) -> None:
    """Remove the limits of scopes that are deleted."""
    gone = set(scopes)
    state.limits = {key: record for key, record in state.limits.items() if record.limit.scope not in gone}


class MemoryOrganisations:
    """Organisations of a directory in memory (`tenancy.directory_ports.Organisations`)."""

    def __init__(self, state: MemoryRecords) -> None:
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

    def __init__(self, state: MemoryRecords) -> None:
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
    """Projects of a directory in memory (`tenancy.directory_ports.ProjectStore`)."""

    def __init__(self, state: MemoryRecords) -> None:
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


def _forget_projects(state: MemoryRecords, tenant: TenantId, names: list[ProjectId]) -> None:
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


class MemoryKeys:
    """API keys of a directory in memory (`tenancy.directory_ports.Keys`)."""

    def __init__(self, state: MemoryRecords) -> None:
        self._state = state

    async def page(self, within: Within, after: str, limit: int) -> list[KeyRecord]:
        return page_of(
            {str(record.id): record for record in self._state.keys.values() if rules.reaches(within, record.tenant)}, after, limit
        )

    async def get(self, within: Within, key_id: KeyId) -> KeyRecord:
        record = self._state.keys.get(key_id)
        if record is None or not rules.reaches(within, record.tenant):
            raise rules.no_key(key_id)
        return record

    async def create(self, within: Within, record: KeyRecord) -> KeyRecord:
        if record.tenant not in self._state.tenants or not rules.reaches(within, record.tenant):
            raise rules.no_tenant(record.tenant)
        if (record.tenant, record.project) not in self._state.projects:
            raise rules.no_project(record.tenant, record.project)
        if record.id in self._state.keys:
            raise rules.taken(f"key {record.id!r}")
        return self._put(msgspec.structs.replace(record, version=1))

    async def alive(self, tenant: TenantId) -> int:
        return sum(record.tenant == tenant and record.revoked_unix is None for record in self._state.keys.values())

    async def forget_revoked(self, tenant: TenantId, keep: int) -> None:
        gone = [record for record in self._state.keys.values() if record.tenant == tenant and record.revoked_unix is not None]
        for record in sorted(gone, key=lambda revoked: (revoked.revoked_unix or 0.0, revoked.id), reverse=True)[keep:]:
            forget_limits(self._state, [Scope(Level.KEY, record.id)])
            del self._state.keys[record.id]
            self._state.dirty = True

    async def update(self, within: Within, record: KeyRecord) -> KeyRecord:
        stored = await self.get(within, record.id)
        if stored.version != record.version:
            raise rules.changed(f"key {record.id!r}")
        unchanged = {"tenant": stored.tenant, "project": stored.project, "created_unix": stored.created_unix}
        return self._put(msgspec.structs.replace(record, **unchanged, version=stored.version + 1))

    def _put(self, record: KeyRecord) -> KeyRecord:
        self._state.keys[record.id] = record
        self._state.dirty = True
        return record


class MemoryLimits:
    """Limits of a directory in memory (`tenancy.directory_ports.LimitStore`)."""

    def __init__(self, state: MemoryRecords) -> None:
        self._state = state

    async def page(self, within: Within, after: str, limit: int) -> list[LimitRecord]:
        reached = {key: record for key, record in self._state.limits.items() if rules.reaches(within, record.tenant)}
        return page_of(reached, after, limit)

    async def get(self, within: Within, scope: Scope, meter: Meter, window: LimitWindow) -> LimitRecord:
        record = self._state.limits.get(state_key(scope, meter, window))
        if record is None or not rules.reaches(within, record.tenant):
            raise rules.no_limit(scope, meter, window)
        return record

    async def put(self, within: Within, limit: Limit, version: int) -> LimitRecord:
        owner = self._owner(within, limit.scope)
        key = rules.key_of_limit(limit)
        stored = self._state.limits.get(key)
        if (stored.version if stored is not None else 0) != version:
            raise rules.changed(f"the limit {key!r}")
        record = self._state.limits[key] = LimitRecord(limit, owner, version + 1)
        self._state.dirty = True
        return record

    async def remove(self, within: Within, scope: Scope, meter: Meter, window: LimitWindow, version: int) -> None:
        stored = await self.get(within, scope, meter, window)
        if stored.version != version:
            raise rules.changed(f"the limit {rules.key_of_limit(stored.limit)!r}")
        del self._state.limits[rules.key_of_limit(stored.limit)]
        self._state.dirty = True

    def _owner(self, within: Within, scope: Scope) -> str:
        rules.check_scope(scope)
        state = self._state
        if scope.level in (Level.GLOBAL, Level.MODEL, Level.ORGANISATION):
            if not rules.reaches(within, "") or (scope.level is Level.ORGANISATION and scope.name not in state.organisations):
                raise rules.no_organisation(scope.name) if scope.level is Level.ORGANISATION else rules.out_of_reach(scope)
            return ""
        if scope.level is Level.KEY:
            record = state.keys.get(rules.key_id_of(scope))
            if record is None or not rules.reaches(within, record.tenant):
                raise rules.no_key(scope.name)
            return record.tenant
        tenant, project = rules.place_of(scope)
        if tenant not in state.tenants or not rules.reaches(within, tenant):
            raise rules.no_tenant(tenant)
        if project is not None and (tenant, project) not in state.projects:
            raise rules.no_project(tenant, project)
        return tenant


class MemoryPrices:
    """Prices of a directory in memory (`tenancy.directory_ports.Prices`)."""

    def __init__(self, state: MemoryRecords) -> None:
        self._state = state

    async def page(self, model: str, after: str, limit: int) -> list[Price]:
        return page_of({key: price for key, price in self._state.prices.items() if model in ("", price.model)}, after, limit)

    async def get(self, price_id: str) -> Price:
        price = self._state.prices.get(price_id)
        if price is None:
            raise NotFound(f"no price {price_id!r}")
        return price

    async def add(self, price: Price) -> None:
        begins = (price.model, price.revision, price.effective_unix)
        if price.id in self._state.prices:
            raise rules.taken(f"price {price.id!r}")
        if any((stored.model, stored.revision, stored.effective_unix) == begins for stored in self._state.prices.values()):
            raise rules.taken(f"a price of model {price.model!r}, revision {price.revision!r}, from that moment on")
        self._state.prices[price.id] = price
        self._state.dirty = True


class MemoryDirectoryChange:
    """One transaction on a directory in memory (`tenancy.directory_ports.DirectoryChange`)."""

    def __init__(self, state: MemoryRecords) -> None:
        self.organisations = MemoryOrganisations(state)
        self.tenants = MemoryTenants(state)
        self.projects = MemoryProjects(state)
        self.keys = MemoryKeys(state)
        self.limits = MemoryLimits(state)
        self.prices = MemoryPrices(state)


class MemoryDirectory:
    """A directory in memory (`tenancy.directory_ports.DirectoryStore`)."""

    def __init__(self) -> None:
        self._state = MemoryRecords()
        self._writing = asyncio.Lock()

    async def version(self) -> int:
        return self._state.version

    async def revocations(self) -> dict[KeyId, float]:
        return {key.id: key.revoked_unix for key in self._state.keys.values() if key.revoked_unix is not None}

    async def load(self) -> Contents:
        state = self._state
        return Contents(
            version=state.version,
            organisations=tuple(state.organisations.values()),
            tenants=tuple(state.tenants.values()),
            projects=tuple(state.projects.values()),
            keys=tuple(state.keys.values()),
            limits=tuple(record.limit for record in state.limits.values()),
            prices=tuple(state.prices.values()),
        )

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[DirectoryChange]:
        async with self._writing:
            state = self._state.copy()
            yield MemoryDirectoryChange(state)
            if state.dirty:
                state.version += 1
                state.dirty = False
                self._state = state
