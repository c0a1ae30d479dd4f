"""A directory in dictionaries, lost with the process: for tests and embedding. A transaction works on a copy that replaces the
original when the transaction ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tenancy.accounts import Contents
from tenancy.directory_ports import DirectoryChange
from tenancy.stores.memory.accounts import MemoryOrganisations, MemoryProjects, MemoryTenants
from tenancy.stores.memory.keys import MemoryKeys
from tenancy.stores.memory.limits import MemoryLimits
from tenancy.stores.memory.prices import MemoryPrices
from tenancy.stores.memory.state import State


class MemoryDirectoryChange:
    """One transaction on a directory in memory (`tenancy.directory_ports.DirectoryChange`)."""

    def __init__(self, state: State) -> None:
        self.organisations = MemoryOrganisations(state)
        self.tenants = MemoryTenants(state)
        self.projects = MemoryProjects(state)
        self.keys = MemoryKeys(state)
        self.limits = MemoryLimits(state)
        self.prices = MemoryPrices(state)


class MemoryDirectory:
    """A directory in memory (`tenancy.directory_ports.DirectoryStore`)."""

    def __init__(self) -> None:
        self._state = State()
        self._writing = asyncio.Lock()

    async def version(self) -> int:
        return self._state.version

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
