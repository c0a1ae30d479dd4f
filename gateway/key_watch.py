"""Keeps the key snapshot current: the store's change counter is read often, the keys only when it moved."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.deps import Live
from tenancy.keys import KeyRing, Pepper
from tenancy.ports import KeySource

log = structlog.get_logger("tidegate.keys")


class KeyWatch:
    """A store that cannot be reached leaves the last snapshot in force: keys keep working while the database is away."""

    def __init__(self, source: KeySource, pepper: Pepper, close: Callable[[], Awaitable[None]]) -> None:
        self._source = source
        self._pepper = pepper
        self._close = close
        self._version = -1
        self._reachable = True

    async def load(self) -> KeyRing:
        """The first snapshot. Raises what the store raises: without keys there is nothing to serve."""
        self._version = await self._source.version()
        return KeyRing(await self._source.load(), self._pepper)

    async def refresh(self, live: Live) -> None:
        """Take up changes, if there are any."""
        try:
            version = await self._source.version()
            if version != self._version:
                live.keys = KeyRing(await self._source.load(), self._pepper)
                self._version = version
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the old snapshot stays in force
            if self._reachable:
                log.warning("key store unreachable, keeping the last keys", error=f"{type(error).__name__}: {error}"[:200])
            self._reachable = False
            return
        if not self._reachable:
            log.info("key store reachable again")
        self._reachable = True

    async def run(self, live: Live, every_s: float) -> None:
        """Refresh until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.refresh(live)

    async def close(self) -> None:
        """Let the store's connections go."""
        await self._close()
