"""Limits in memory."""

from tenancy.accounts import LimitRecord
from tenancy.directory_ports import Within
from tenancy.limits import Level, Limit, Meter, Scope, Window, state_key
from tenancy.stores import rules
from tenancy.stores.memory.state import State, page_of


class MemoryLimits:
    """Limits of a directory in memory (`tenancy.directory_ports.Limits`)."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def page(self, within: Within, after: str, limit: int) -> list[LimitRecord]:
        reached = {key: record for key, record in self._state.limits.items() if rules.reaches(within, record.tenant)}
        return page_of(reached, after, limit)

    async def get(self, within: Within, scope: Scope, meter: Meter, window: Window) -> LimitRecord:
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

    async def remove(self, within: Within, scope: Scope, meter: Meter, window: Window, version: int) -> None:
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
