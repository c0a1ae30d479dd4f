"""Ports of a store of tenants, keys, limits and prices: a snapshot for the request path, and transactions for operators.

    async with store.transaction() as change:
        tenant = await change.tenants.get(within, name)
        await change.tenants.update(within, msgspec.structs.replace(tenant, disabled=True))
        ...                       # whatever else has to happen in the same transaction, as a row of the audit log

Leaving the block commits; leaving it by an exception changes nothing at all. The change counter is raised in the transaction.

`within` says whose records a call may touch: one tenant's, or everybody's when it is EVERYWHERE. It has no default. A record
outside it does not exist: the call raises NotFound, as for any other name that is not there.

`room_for_key` and `room_for_project` check that a tenant may have one more. They are called in the transaction that creates it, where no
other writer writes.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import Contents, DirectoryBounds, LimitRecord, Organisation, Project, Tenant
from tenancy.keys import KeyRecord
from tenancy.limits import Limit, LimitWindow, Meter, Scope
from tenancy.prices import Price

Within = TenantId | None
EVERYWHERE: Final = None

MAX_PAGE: Final = 1000
"""Records of one page; a larger `limit` is cut to it."""


class NotFound(LookupError):
    """There is no such record, or it is not within reach; the message names it."""


class AlreadyExists(ValueError):
    """The name is taken; the message has the name."""


class Conflict(ValueError):
    """The record is no longer of the version that the change was made from; the message names the record. Read it again."""


class StillInUse(ValueError):
    """The record cannot be deleted while others need it; the message names them."""


class DirectorySource(Protocol):
    """The source of the request path's snapshot."""

    async def version(self) -> int:
        """A number that every write raises; cheap enough to ask every second."""
        ...

    async def revocations(self) -> dict[KeyId, float]:
        """When each revoked key was revoked, by its id; quick where `load` takes seconds."""
        ...

    async def load(self) -> Contents:
        """All contents, as they stood at one moment. Raises TimeoutError, or the store's own errors."""
        ...


class Organisations(Protocol):
    """Organisations, for operators of the whole gateway."""

    async def page(self, after: str, limit: int) -> list[Organisation]:
        """Up to `limit` organisations by name, those after `after`; `""` for the start."""
        ...

    async def get(self, name: str) -> Organisation:
        """The organisation of this name. Raises NotFound."""
        ...

    async def create(self, organisation: Organisation) -> Organisation:
        """Add an organisation; returns it as stored, with version 1. Raises AlreadyExists."""
        ...

    async def update(self, organisation: Organisation) -> Organisation:
        """Replace the record of `organisation.version`; returns it as stored, with the next version. Raises NotFound, Conflict."""
        ...

    async def delete(self, name: str, version: int) -> None:
        """Remove an organisation with its limits. Raises NotFound, Conflict; InUse for one with tenants, and for the default one."""
        ...


class Tenants(Protocol):
    """Tenants."""

    async def page(self, within: Within, after: str, limit: int) -> list[Tenant]:
        """Up to `limit` tenants by name, those after `after`."""
        ...

    async def get(self, within: Within, name: TenantId) -> Tenant:
        """The tenant of this name. Raises NotFound."""
        ...

    async def create(self, tenant: Tenant) -> Tenant:
        """Add a tenant with its `default` project. Raises AlreadyExists, for the name of a deleted tenant as well; NotFound for an
        unknown organisation."""
        ...

    async def update(self, within: Within, tenant: Tenant) -> Tenant:
        """Replace the record of `tenant.version`. Raises NotFound (of the tenant or its organisation), Conflict."""
        ...

    async def delete(self, within: Within, name: TenantId, version: int) -> None:
        """Remove a tenant with its projects, revoked keys and limits; its name cannot be used again. Raises NotFound, Conflict; InUse
        while a key is not revoked."""
        ...


class ProjectStore(Protocol):
    """Projects of tenants."""

    async def page(self, within: Within, tenant: TenantId, after: str, limit: int) -> list[Project]:
        """Up to `limit` projects of a tenant by name, those after `after`. Raises NotFound for an unknown tenant."""
        ...

    async def get(self, within: Within, tenant: TenantId, name: ProjectId) -> Project:
        """The project of this name. Raises NotFound."""
        ...

    async def count(self, tenant: TenantId) -> int:
        """How many projects a tenant has."""
        ...

    async def create(self, within: Within, project: Project) -> Project:
        """Add a project. Raises AlreadyExists, NotFound for an unknown tenant."""
        ...

    async def update(self, within: Within, project: Project) -> Project:
        """Replace the record of `project.version`. Raises NotFound, Conflict."""
        ...

    async def delete(self, within: Within, tenant: TenantId, name: ProjectId, version: int) -> None:
        """Remove a project with its revoked keys and limits. Raises NotFound, Conflict; InUse while a key is not revoked, and for
        `default`."""
        ...


class Keys(Protocol):
    """API keys. `tenancy.keys` has the changes to a key's record: `rotated`, `revoked`. Keys are deleted with their project, and a
    tenant's oldest revoked keys when it has very many."""

    async def page(self, within: Within, after: str, limit: int) -> list[KeyRecord]:
        """Up to `limit` keys by id, those after `after`."""
        ...

    async def get(self, within: Within, key_id: KeyId) -> KeyRecord:
        """The key of this id. Raises NotFound."""
        ...

    async def create(self, within: Within, record: KeyRecord) -> KeyRecord:
        """Add a key. Raises NotFound for an unknown tenant or project, AlreadyExists for a taken id."""
        ...

    async def alive(self, tenant: TenantId) -> int:
        """How many keys of a tenant are not revoked."""
        ...

    async def forget_revoked(self, tenant: TenantId, keep: int) -> None:
        """Remove the tenant's revoked keys with their limits, all but the `keep` keys that were revoked last."""
        ...

    async def update(self, within: Within, record: KeyRecord) -> KeyRecord:
        """Replace the record of `record.version`; the key's tenant and project do not change. Raises NotFound, Conflict."""
        ...


class LimitStore(Protocol):
    """Limits. Limits of organisations, models and the gateway are within EVERYWHERE only."""

    async def page(self, within: Within, after: str, limit: int) -> list[LimitRecord]:
        """Up to `limit` limits by `tenancy.limits.state_key`, those after `after`."""
        ...

    async def get(self, within: Within, scope: Scope, meter: Meter, window: LimitWindow) -> LimitRecord:
        """The limit of this scope, meter and window. Raises NotFound."""
        ...

    async def put(self, within: Within, limit: Limit, version: int) -> LimitRecord:
        """Set a limit, or change it. `version` is the version of the record that it replaces, 0 for none. A temporary raise is a limit
        with `raised_to`. Raises NotFound for an unknown scope, Conflict."""
        ...

    async def remove(self, within: Within, scope: Scope, meter: Meter, window: LimitWindow, version: int) -> None:
        """Remove a limit. Raises NotFound, Conflict."""
        ...


class Prices(Protocol):
    """Prices. A stored price never changes; a newer one replaces it from its own `effective_unix` on."""

    async def page(self, model: str, after: str, limit: int) -> list[Price]:
        """Up to `limit` prices by id, those after `after`; of one model, or of all for `""`."""
        ...

    async def get(self, price_id: str) -> Price:
        """The price of this id. Raises NotFound."""
        ...

    async def add(self, price: Price) -> None:
        """Add a price. Raises AlreadyExists for a taken id, and where the model's revision has a price from that moment already."""
        ...


class DirectoryChange(Protocol):
    """One open transaction. A store in SQL that is opened on the connection of an open transaction takes part in it
    (`tenancy.stores.sql.transaction`), so that a change and its row of the audit log are durable together or not at all."""

    @property
    def organisations(self) -> Organisations: ...

    @property
    def tenants(self) -> Tenants: ...

    @property
    def projects(self) -> ProjectStore: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def limits(self) -> LimitStore: ...

    @property
    def prices(self) -> Prices: ...


class DirectoryStore(DirectorySource, Protocol):
    """A store: the snapshot, and changes to it."""

    def transaction(self) -> AbstractAsyncContextManager[DirectoryChange]:
        """Open a transaction, as the module's docstring shows. A transaction that only reads does not raise the change counter."""
        ...


class NoRoom(ValueError):
    """The tenant has as many records as it may; the message says which, how many, and what to do."""


async def room_for_key(change: DirectoryChange, tenant: TenantId, bounds: DirectoryBounds) -> None:
    """Forget the tenant's oldest revoked keys beyond the bound. Raises NoRoom when it has as many unrevoked keys as it may."""
    if await change.keys.alive(tenant) >= bounds.keys:
        raise NoRoom(
            f"tenant {tenant!r} has {bounds.keys} keys that are not revoked, which is as many as tenants.max_keys allows; "
            "revoke those that are not needed, expired ones too, or raise it in the settings"
        )
    await change.keys.forget_revoked(tenant, bounds.keys)


async def room_for_project(change: DirectoryChange, tenant: TenantId, bounds: DirectoryBounds) -> None:
    """Raises NoRoom when the tenant has as many projects as it may."""
    if await change.projects.count(tenant) >= bounds.projects:
        raise NoRoom(
            f"tenant {tenant!r} has {bounds.projects} projects, which is as many as tenants.max_projects allows; "
            "delete one, or raise it in the settings"
        )
