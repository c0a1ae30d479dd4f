"""What the gateway needs of stores: keys for the request path, keys for operators, and the ledger of holds."""

from typing import Protocol

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.hold import Closing, Hold
from tenancy.keys import KeyRecord


class NotFound(LookupError):
    """No such tenant, project or key; the message names it."""


class AlreadyExists(ValueError):
    """The name is taken; the message names it."""


class KeySource(Protocol):
    """Keys, as the request path's snapshot is made from."""

    async def version(self) -> int:
        """A number that every write raises; cheap enough to ask every second."""
        ...

    async def load(self) -> list[KeyRecord]:
        """Every key there is."""
        ...


class KeyAdmin(Protocol):
    """Keys and tenants, as an operator changes them."""

    async def create_tenant(self, tenant: TenantId, now_unix: float) -> None:
        """Make a tenant with its `default` project. Raises AlreadyExists."""
        ...

    async def tenants(self) -> list[TenantId]:
        """Every tenant's name, sorted."""
        ...

    async def add_key(self, record: KeyRecord) -> None:
        """Store a new key. Raises NotFound for an unknown tenant or project, AlreadyExists for a taken id."""
        ...

    async def revoke_key(self, key_id: KeyId, now_unix: float) -> None:
        """Revoke a key for good; revoking it again changes nothing. Raises NotFound."""
        ...


class Ledger(Protocol):
    """The books of holds."""

    in_process: bool
    """True when no call ever suspends, so that nothing can cut a closing short."""

    async def reserve(self, hold: Hold) -> None:
        """Open a hold; the same id again changes nothing."""
        ...

    async def close(self, hold: Hold, closing: Closing) -> None:
        """Close it; only the first closing counts."""
        ...


DEFAULT_PROJECT = ProjectId("default")
"""The project every tenant has from the start."""
