"""Keeps the directory current: the store's change counter is read often, the directory only when it moved."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from domain.clock import WallClock
from gateway.directory_file import DirectoryFile
from tenancy.accounts import Contents
from tenancy.directory import Directory
from tenancy.directory_ports import DirectorySource
from tenancy.keys import Pepper

log = structlog.get_logger("tidegate.directory")

POLL_S: Final = 2.0
"""How often the change counter is read: a revoked key is refused within 5 s (R34), two polls and a load."""
READ_WITHIN_S: Final = 10.0
"""Longest wait for the store: a database that takes connections and does not answer is away."""
SAVE_EVERY_S: Final = 600.0
"""How often the kept file is written though nothing changed, so that it says how old it really is."""
ADMIN_STALE_S: Final = 60.0
"""For how long after the store last answered an admin key is believed: it may have been revoked since."""


class Follower(Protocol):
    """What has a directory and wants the current one: `gateway.deps.Live` is one."""

    directory: Directory


class DirectoryWatch:
    """A store that cannot be reached leaves the last directory in force: keys keep working while the database is away.

    Args:
        source: the store.
        pepper: what key digests are keyed with.
        file: where the directory is kept for a start without the store.
        wall: seconds since the epoch.
        close: lets the store's connections go.
    """

    def __init__(
        self, source: DirectorySource, pepper: Pepper, file: DirectoryFile, wall: WallClock, close: Callable[[], Awaitable[None]]
    ) -> None:
        self._source = source
        self._pepper = pepper
        self._file = file
        self._wall = wall
        self._close = close
        self._contents = Contents()
        self._version = -1
        self._confirmed_unix = -math.inf
        self._saved_unix = -math.inf
        self._reachable = True

    async def load(self) -> Directory:
        """The first directory: the store's, or while that is away the one in the file.

        Raises what the store raises when there is no file either: without keys there is nothing to serve.
        """
        try:
            await self._read()
        except Exception as error:  # drivers raise their own; whatever it is, there may be a file
            kept = await asyncio.to_thread(self._file.load)
            if kept is None:
                raise
            self._contents, self._confirmed_unix = kept.contents, kept.at_unix
            self._reachable = False
            age_s = round(self._wall() - kept.at_unix)
            log.warning("directory store unreachable, starting with the kept directory", age_s=age_s, error=_short(error))
        else:
            await self._save()
        return await self._compiled()

    async def refresh(self, live: Follower) -> None:
        """Take up changes, if there are any."""
        try:
            changed = await self._read()
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the old directory stays in force
            if self._reachable:
                log.warning("directory store unreachable, keeping the last directory", error=_short(error))
            self._reachable = False
            return
        if changed:
            live.directory = await self._compiled()
        if changed or self._confirmed_unix - self._saved_unix >= SAVE_EVERY_S:
            await self._save()
        if not self._reachable:
            log.info("directory store reachable again")
        self._reachable = True

    @property
    def age_s(self) -> float:
        """Seconds since the store last said that the directory in force is the current one."""
        return max(0.0, self._wall() - self._confirmed_unix)

    @property
    def believes_admins(self) -> bool:
        """Whether keys of the admin port may be taken: not when they may have been revoked for a minute."""
        return self.age_s <= ADMIN_STALE_S

    async def run(self, live: Follower, every_s: float = POLL_S) -> None:
        """Refresh until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.refresh(live)

    async def close(self) -> None:
        """Let the store's connections go."""
        await self._close()

    async def _read(self) -> bool:
        """Whether there was anything new. Raises what the store raises, TimeoutError among it."""
        asked_unix = self._wall()  # what is revoked after this moment may be missing from the answer
        async with asyncio.timeout(READ_WITHIN_S):
            changed = await self._source.version() != self._version
            if changed:
                self._contents = await self._source.load()
                self._version = self._contents.version
        self._confirmed_unix = asked_unix
        return changed

    async def _compiled(self) -> Directory:
        # 10,000 keys take tens of milliseconds, which no request should wait for
        return await asyncio.to_thread(Directory, self._contents, self._pepper)

    async def _save(self) -> None:
        self._saved_unix = self._confirmed_unix
        await asyncio.to_thread(self._file.save, self._contents, self._confirmed_unix)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
