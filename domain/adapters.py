"""Adapters that operators register while gateways run, beside those of the settings. Values only."""

from typing import Final, Protocol

import msgspec


class RegisteredAdapter(msgspec.Struct, frozen=True):
    """One adapter of the database."""

    pool: str
    name: str
    """The name that policies and grants use; unique in its pool."""
    digest: str
    """SHA-256 of the adapter's files, 64 hexadecimal digits."""
    path: str
    """The adapter's folder on the engines' machines."""


class AdapterTaken(ValueError):
    """The pool has a registered adapter of this name already."""


class AdaptersFull(ValueError):
    """`MAX_REGISTERED_ADAPTERS` adapters are registered."""


class AdapterStore(Protocol):
    """The registered adapters, shared by every gateway on the database."""

    async def version(self) -> int:
        """A number that increases with every write; cheap enough to read every second."""
        ...

    async def load(self) -> list[RegisteredAdapter]:
        """Every registered adapter, by pool and name."""
        ...

    async def add(self, adapter: RegisteredAdapter, now_unix: float) -> None:
        """Register an adapter. Raises AdapterTaken for a name that the pool has, AdaptersFull at `MAX_REGISTERED_ADAPTERS`."""
        ...

    async def remove(self, pool: str, name: str) -> bool:
        """Remove an adapter; False when it is not registered."""
        ...


MAX_REGISTERED_ADAPTERS: Final = 1000
"""Registered adapters of one database; every worker keeps all of them. As many as one pool of the settings may have."""
