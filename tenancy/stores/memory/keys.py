"""Tenants and keys in dictionaries; gone with the process."""

import msgspec

from domain.identity import KeyId, TenantId
from tenancy.keys import KeyRecord
from tenancy.ports import DEFAULT_PROJECT, AlreadyExists, NotFound


class MemoryKeyStore:
    """See `tenancy.ports.KeySource` and `tenancy.ports.KeyAdmin`."""

    def __init__(self) -> None:
        self._version = 0
        self._tenants: set[TenantId] = set()
        self._keys: dict[KeyId, KeyRecord] = {}

    async def version(self) -> int:
        """See the port."""
        return self._version

    async def load(self) -> list[KeyRecord]:
        """See the port."""
        return list(self._keys.values())

    async def create_tenant(self, tenant: TenantId, now_unix: float) -> None:
        """See the port."""
        if tenant in self._tenants:
            raise AlreadyExists(f"tenant {tenant!r} exists already")
        self._tenants.add(tenant)
        self._version += 1

    async def tenants(self) -> list[TenantId]:
        """See the port."""
        return sorted(self._tenants)

    async def add_key(self, record: KeyRecord) -> None:
        """See the port."""
        if record.tenant not in self._tenants:
            raise NotFound(f"no tenant {record.tenant!r}")
        if record.project != DEFAULT_PROJECT:
            raise NotFound(f"no project {record.project!r} in tenant {record.tenant!r}")
        if record.id in self._keys:
            raise AlreadyExists(f"key {record.id!r} exists already")
        self._keys[record.id] = record
        self._version += 1

    async def revoke_key(self, key_id: KeyId, now_unix: float) -> None:
        """See the port."""
        record = self._keys.get(key_id)
        if record is None:
            raise NotFound(f"no key {key_id!r}")
        if record.revoked_unix is None:
            self._keys[key_id] = msgspec.structs.replace(record, revoked_unix=now_unix)
            self._version += 1
