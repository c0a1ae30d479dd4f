"""What the gateway needs of a store of tenants, keys, limits and prices: a snapshot for the request path, and one transaction at a
time for operators.

    async with store.transaction() as change:
        tenant = await change.tenants.get(within, name)
        await change.tenants.update(within, msgspec.structs.replace(tenant, disabled=True))
        ...                       # whatever else has to happen in the same transaction, as a row of the audit log

Leaving the block commits; leaving it by an exception changes nothing at all. The change counter is raised in the transaction.

`within` says whose records a call may touch: one tenant's, or everybody's when it is EVERYWHERE. It has no default. A record
outside it does not exist: the call raises NotFound, as for any other name that is not there.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import Contents, LimitRecord, Organisation, Project, Tenant
from tenancy.keys import KeyRecord
from tenancy.limits import Limit, Meter, Scope, Window
from tenancy.prices import Price

Within = TenantId | None
EVERYWHERE: Final = None

MAX_PAGE: Final = 1000
"""Records of one page; a larger `limit` is cut to it."""


class NotFound(LookupError):
    """No such record, or not within reach; the message names it."""


class AlreadyExists(ValueError):
    """The name is taken; the message names it."""


class Conflict(ValueError):
    """The record is no longer the version the change was made from; the message names it. Read it again."""


class InUse(ValueError):
    """It cannot be deleted while something needs it; the message says what."""


class DirectorySource(Protocol):
    """What the request path's snapshot is made from."""

    async def version(self) -> int:
        """A number that every write raises; cheap enough to ask every second."""
        ...

    async def load(self) -> Contents:
        """Everything, of one moment."""
        ...


class Organisations(Protocol):
    """Organisations, for operators of the whole gateway."""

    async def page(self, after: str, limit: int) -> list[Organisation]:
        """Up to `limit` by name, from behind `after`; `""` for the start."""
        ...

    async def get(self, name: str) -> Organisation:
        """Raises NotFound."""
        ...

    async def create(self, organisation: Organisation) -> Organisation:
        """As stored, with version 1. Raises AlreadyExists."""
        ...

    async def update(self, organisation: Organisation) -> Organisation:
        """Replace the record of `organisation.version`; as stored, with the next version. Raises NotFound, Conflict."""
        ...

    async def delete(self, name: str, version: int) -> None:
        """With its limits. Raises NotFound, Conflict; InUse for one with tenants, and for the default one."""
        ...


class Tenants(Protocol):
    """Tenants."""

    async def page(self, within: Within, after: str, limit: int) -> list[Tenant]:
        """Up to `limit` by name, from behind `after`."""
        ...

    async def get(self, within: Within, name: TenantId) -> Tenant:
        """Raises NotFound."""
        ...

    async def create(self, tenant: Tenant) -> Tenant:
        """With its `default` project. Raises AlreadyExists, for the name of a deleted tenant as well; NotFound for an unknown
        organisation."""
        ...

    async def update(self, within: Within, tenant: Tenant) -> Tenant:
        """Raises NotFound (of the tenant or its organisation), Conflict."""
        ...

    async def delete(self, within: Within, name: TenantId, version: int) -> None:
        """With its projects, revoked keys and limits; its name is not given out again. Raises NotFound, Conflict; InUse while a key
        is not revoked."""
        ...


class Projects(Protocol):
    """Projects of tenants."""

    async def page(self, within: Within, tenant: TenantId, after: str, limit: int) -> list[Project]:
        """Those of one tenant, by name. Raises NotFound for an unknown tenant."""
        ...

    async def get(self, within: Within, tenant: TenantId, name: ProjectId) -> Project:
        """Raises NotFound."""
        ...

    async def count(self, tenant: TenantId) -> int:
        """How many a tenant has."""
        ...

    async def create(self, within: Within, project: Project) -> Project:
        """Raises AlreadyExists, NotFound for an unknown tenant."""
        ...

    async def update(self, within: Within, project: Project) -> Project:
        """Raises NotFound, Conflict."""
        ...

    async def delete(self, within: Within, tenant: TenantId, name: ProjectId, version: int) -> None:
        """With its revoked keys and limits. Raises NotFound, Conflict; InUse while a key is not revoked, and for `default`."""
        ...


class Keys(Protocol):
    """API keys. `tenancy.keys` has what is done to one: `rotated`, `revoked`. Keys are deleted with their project,
    and the oldest revoked ones of a tenant that makes very many."""

    async def page(self, within: Within, after: str, limit: int) -> list[KeyRecord]:
        """Up to `limit` by id, from behind `after`."""
        ...

    async def get(self, within: Within, key_id: KeyId) -> KeyRecord:
        """Raises NotFound."""
        ...

    async def create(self, within: Within, record: KeyRecord) -> KeyRecord:
        """Raises NotFound for an unknown tenant or project, AlreadyExists for a taken id."""
        ...

    async def alive(self, tenant: TenantId) -> int:
        """How many keys of a tenant are not revoked."""
        ...

    async def forget_revoked(self, tenant: TenantId, keep: int) -> None:
        """Remove revoked keys of a tenant with their limits, all but the `keep` that were revoked last."""
        ...

    async def update(self, within: Within, record: KeyRecord) -> KeyRecord:
        """Tenant and project of a key stay what they were. Raises NotFound, Conflict."""
        ...


class Limits(Protocol):
    """Limits. Those of organisations, models and the gateway are EVERYWHERE's only."""

    async def page(self, within: Within, after: str, limit: int) -> list[LimitRecord]:
        """Up to `limit` by `tenancy.limits.state_key`, from behind `after`."""
        ...

    async def get(self, within: Within, scope: Scope, meter: Meter, window: Window) -> LimitRecord:
        """Raises NotFound."""
        ...

    async def put(self, within: Within, limit: Limit, version: int) -> LimitRecord:
        """Set a limit, or change it. `version` is that of the record it replaces, 0 for none. A raise is a limit with
        `raised_to`. Raises NotFound for an unknown scope, Conflict."""
        ...

    async def remove(self, within: Within, scope: Scope, meter: Meter, window: Window, version: int) -> None:
        """Raises NotFound, Conflict."""
        ...


class Prices(Protocol):
    """Prices. One that is written stays as it is; a new one takes over from its own moment on."""

    async def page(self, model: str, after: str, limit: int) -> list[Price]:
        """Up to `limit` by id, from behind `after`; of one model, or of all for `""`."""
        ...

    async def get(self, price_id: str) -> Price:
        """Raises NotFound."""
        ...

    async def add(self, price: Price) -> None:
        """Raises AlreadyExists for a taken id, and where the model's revision has a price from that moment already."""
        ...


class DirectoryChange(Protocol):
    """One open transaction. A store in SQL that was opened on the connection of a transaction under way takes part in that one
    (`tenancy.stores.sql.joined`), so that a change and its row of the audit log are durable together or not at all."""

    @property
    def organisations(self) -> Organisations: ...

    @property
    def tenants(self) -> Tenants: ...

    @property
    def projects(self) -> Projects: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def prices(self) -> Prices: ...


class DirectoryStore(DirectorySource, Protocol):
    """A store: the snapshot, and changes to it."""

    def transaction(self) -> AbstractAsyncContextManager[DirectoryChange]:
        """Open one; see the module. Reading alone raises no counter."""
        ...
