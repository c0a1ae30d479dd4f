"""Registered adapters in memory, for tests and for trying things out."""

from domain.adapters import MAX_REGISTERED_ADAPTERS, AdaptersFull, AdapterTaken, RegisteredAdapter


class MemoryAdapterStore:
    """Registered adapters in memory (`domain.adapters.AdapterStore`)."""

    def __init__(self) -> None:
        self._adapters: dict[tuple[str, str], RegisteredAdapter] = {}
        self._version = 1

    async def version(self) -> int:
        return self._version

    async def load(self) -> list[RegisteredAdapter]:
        return [self._adapters[key] for key in sorted(self._adapters)]

    async def add(self, adapter: RegisteredAdapter, now_unix: float) -> None:
        key = (adapter.pool, adapter.name)
        if key in self._adapters:
            raise AdapterTaken(f"pool {adapter.pool!r} has a registered adapter {adapter.name!r} already")
        if len(self._adapters) >= MAX_REGISTERED_ADAPTERS:
            raise AdaptersFull(f"{MAX_REGISTERED_ADAPTERS} adapters are registered already; delete some")
        self._adapters[key] = adapter
        self._version += 1

    async def remove(self, pool: str, name: str) -> bool:
        if self._adapters.pop((pool, name), None) is None:
            return False
        self._version += 1
        return True
