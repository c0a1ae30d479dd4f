"""API keys in memory."""

import msgspec

from domain.identity import KeyId, TenantId
from tenancy.directory_ports import Within
from tenancy.keys import KeyRecord
from tenancy.limits import Level, Scope
from tenancy.stores import rules
from tenancy.stores.memory.state import State, forget_limits, page_of


class MemoryKeys:
    """API keys of a directory in memory (`tenancy.directory_ports.Keys`)."""

    def __init__(self, state: State) -> None:
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
