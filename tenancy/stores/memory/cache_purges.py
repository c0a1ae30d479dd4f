"""Purges of the answer cache in memory, for tests and for trying things out."""

import msgspec

from domain.cache_purges import CachePurge


class MemoryCachePurges:
    """Purges in memory (`domain.cache_purges.CachePurgeStore`)."""

    def __init__(self) -> None:
        self._purges: list[CachePurge] = []

    async def newest(self) -> int:
        return len(self._purges)

    async def since(self, number: int) -> list[CachePurge]:
        return self._purges[number:]

    async def add(self, purge: CachePurge, now_unix: float) -> int:
        self._purges.append(msgspec.structs.replace(purge, at_unix=now_unix))
        return len(self._purges)
