"""Keeps the directory current: the store's change counter is read often, the directory only when it moved.

`DirectoryWatch` does so, and hands each new directory to its followers. `DirectoryFile` keeps the last directory in a sealed file, for a
start of the gateway during an outage of its database.
"""

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from domain.clock import WallClock
from domain.identity import KeyId
from gateway.sync.revocations import LOOK_S, PendingRevocations, with_revoked
from gateway.ticks import next_tick
from tenancy.accounts import Contents
from tenancy.directory import Directory
from tenancy.directory_ports import DirectorySource
from tenancy.keys import Pepper
from tenancy.sealed import NotSealed, SealedDirectory, seal, unseal

log = structlog.get_logger("tidegate.directory")

MAX_SEALED_AGE_S: Final = 86_400.0
"""The age in seconds beyond which a file is not used: a caller that lost access a day ago must not get it back."""
MAX_SEALED_BYTES: Final = 256 * 1024 * 1024
"""A hundred thousand keys take about 30 MB."""


class DirectoryFile:
    """The sealed file, readable by its owner alone. Every worker writes the directory that it read; all read the same one.

    Args:
        path: the file; its folder has to outlive the process.
        pepper: the key of the seal.
        wall: seconds since the epoch.
    """

    def __init__(self, path: Path, pepper: Pepper, wall: WallClock) -> None:
        self._path = path
        self._pepper = pepper
        self._wall = wall
        self._complained = False

    def save(self, contents: Contents, at_unix: float) -> None:
        """Write the file, completely or not at all. A failure is only logged, once, because the file may never be needed."""
        # one temporary file per process: several workers write the same directory at once
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(seal(SealedDirectory(at_unix, contents), self._pepper))
            partial.replace(self._path)
        except OSError as error:
            if not self._complained:
                log.warning("the directory cannot be kept for a start without the database", file=str(self._path), reason=error.strerror)
            self._complained = True
            return
        self._complained = False

    def load(self) -> SealedDirectory | None:
        """The saved directory; None when there is no file, it is older than `MAX_SEALED_AGE_S`, or it is sealed with another pepper."""
        try:
            with open(self._path, "rb") as file:
                saved = unseal(file.read(MAX_SEALED_BYTES), self._pepper)
        except FileNotFoundError:
            return None
        except (OSError, NotSealed) as error:
            log.warning("the kept directory cannot be used", file=str(self._path), reason=str(error))
            return None
        age_s = self._wall() - saved.at_unix
        if age_s > MAX_SEALED_AGE_S:
            log.warning("the kept directory is too old", file=str(self._path), age_s=round(age_s), at_most_s=MAX_SEALED_AGE_S)
            return None
        return saved


POLL_S: Final = 2.0
"""Seconds between two reads of the change counter: a revoked key is refused within 5 s (R34), two polls and a load."""
READ_WITHIN_S: Final = 10.0
"""The longest wait for the change counter: a database that accepts connections and does not answer counts as an outage. The contents of
many tenants take longer to read, and their store says when that is too long."""
MANY_KEYS: Final = 5_000
"""Above this number of keys, revocations are read and in force before the contents are read, which takes some 0.04 s for 1,000 keys with
their tenants and limits."""
SAVE_EVERY_S: Final = 600.0
"""How often the file is written though nothing changed, so that it shows its true age."""
ADMIN_STALE_S: Final = 60.0
"""Seconds after the last answer of the store for which admin keys are accepted: a key may have been revoked since."""


class DirectoryFollower(Protocol):
    """Holds the current directory: `gateway.deps.Live` is one."""

    directory: Directory


class DirectoryWatch:
    """Follows the store's directory. While the store cannot be reached the last directory stays in use: keys keep working.

    Args:
        source: the store.
        pepper: the key of key digests.
        file: where the directory is saved for a start without the store.
        wall: seconds since the epoch.
        close: closes the store's connections.
        pending: revocations that the store could not take; None where there are none.
    """

    def __init__(
        self,
        source: DirectorySource,
        pepper: Pepper,
        file: DirectoryFile,
        wall: WallClock,
        close: Callable[[], Awaitable[None]],
        pending: PendingRevocations | None = None,
    ) -> None:
        self._source = source
        self._pepper = pepper
        self._file = file
        self._wall = wall
        self._close = close
        self._pending = pending
        self._revoked: dict[KeyId, float] = {}
        """Keys that are refused whatever the contents say, with the time of their revocation."""
        self._revoked_since: dict[KeyId, float] = {}
        """Keys that the store says are revoked, and the contents do not yet."""
        self._compiling = asyncio.Lock()
        self._contents = Contents()
        self._version = -1
        self._confirmed_unix = -math.inf
        self._saved_unix = -math.inf
        self._reachable = True

    async def load(self) -> Directory:
        """The first directory: the store's, or during an outage of the store the saved one.

        Raises the store's error when there is no file either: without keys there is nothing to serve.
        """
        self._revoked = await self._pending_revocations()
        try:
            await self._read()
        except Exception as error:  # drivers raise their own errors; whatever it is, there may be a file
            saved = await asyncio.to_thread(self._file.load)
            if saved is None:
                raise
            self._contents = saved.contents
            self._confirmed_unix = saved.at_unix
            self._reachable = False
            age_s = round(self._wall() - saved.at_unix)
            log.warning("directory store unreachable, starting with the kept directory", age_s=age_s, error=_short(error))
        else:
            await self._save()
        return await self._compiled()

    async def refresh(self, live: DirectoryFollower) -> None:
        """Read the change counter once, and hand a changed directory to `live`."""
        known, pending = self._revoked, await self._pending_revocations()
        try:
            changed = await self._read(live)
        except Exception as error:  # noqa: BLE001 - drivers raise their own errors; whatever it is, the old directory stays in use
            if self._reachable:
                log.warning("directory store unreachable, keeping the last directory", error=_short(error))
            self._reachable = False
            return
        # a pending revocation that is no longer in the file was in the store before this read; one that came during it is kept
        pending = {**pending, **{key: at for key, at in self._revoked.items() if key not in known}}
        if changed or pending != self._revoked:
            self._revoked = pending
            await self._hand_over(live)
        if changed or self._confirmed_unix - self._saved_unix >= SAVE_EVERY_S:
            await self._save()
        if not self._reachable:
            log.info("directory store reachable again")
        self._reachable = True

    @property
    def age_s(self) -> float:
        """Seconds since the store last confirmed that this directory is the current one."""
        return max(0.0, self._wall() - self._confirmed_unix)

    @property
    def believes_admins(self) -> bool:
        """Whether keys of the admin port are accepted: not when the directory is older than `ADMIN_STALE_S`, for they may be revoked."""
        return self.age_s <= ADMIN_STALE_S

    async def refuse_revoked(self, live: DirectoryFollower) -> None:
        """Refuse keys whose revocation the store could not take, whether it answers now or not."""
        pending = await self._pending_revocations()
        if not pending.keys() <= self._revoked.keys():
            self._revoked = {**self._revoked, **pending}
            await self._hand_over(live)

    async def run(self, live: DirectoryFollower, every_s: float = POLL_S) -> None:
        """Refresh until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._pending is not None:
                group.create_task(self._follow_revocations(live))
            while True:
                await asyncio.sleep(every_s)
                await self.refresh(live)

    async def _follow_revocations(self, live: DirectoryFollower) -> None:
        # apart from the store's polls, which a store that does not answer holds up for `READ_WITHIN_S`
        while True:
            await next_tick(LOOK_S)
            await self.refuse_revoked(live)

    async def close(self) -> None:
        """Close the store's connections."""
        await self._close()

    async def _read(self, live: DirectoryFollower | None = None) -> bool:
        """Read the counter, and the contents when it moved; returns whether it did. `live` learns of revocations before that. Raises the
        store's errors, and TimeoutError."""
        asked_unix = self._wall()  # a revocation after this moment may be missing from the answer
        async with asyncio.timeout(READ_WITHIN_S):
            changed = await self._source.version() != self._version
        if changed:
            if live is not None and len(self._contents.keys) > MANY_KEYS:
                try:
                    await self._refuse_revoked_since(live)
                except Exception as error:  # noqa: BLE001 - whatever the store raises: the whole directory, read next, says the same
                    log.warning("revocations cannot be read before the directory", reason=_short(error))
            self._contents = await self._source.load()
            self._revoked_since = {}
            self._version = self._contents.version
        self._confirmed_unix = asked_unix
        return changed

    async def _refuse_revoked_since(self, live: DirectoryFollower) -> None:
        async with asyncio.timeout(READ_WITHIN_S):
            stored = await self._source.revocations()
        keys = self._contents.keys
        since = await asyncio.to_thread(lambda: {key.id: stored[key.id] for key in keys if key.revoked_unix is None and key.id in stored})
        if since != self._revoked_since:
            self._revoked_since = since
            await self._hand_over(live)

    async def _pending_revocations(self) -> dict[KeyId, float]:
        if self._pending is None:
            return {}
        return self._pending.revoked() if self._pending.is_unchanged() else await asyncio.to_thread(self._pending.revoked)

    async def _hand_over(self, live: DirectoryFollower) -> None:
        async with self._compiling:  # of two directories that are compiled at once, the one that began last knows all
            live.directory = await self._compiled()

    async def _compiled(self) -> Directory:
        contents, refused = self._contents, {**self._revoked, **self._revoked_since}
        # 10,000 keys take tens of milliseconds, which no request should wait for
        return await asyncio.to_thread(lambda: Directory(with_revoked(contents, refused), self._pepper))

    async def _save(self) -> None:
        self._saved_unix = self._confirmed_unix
        await asyncio.to_thread(self._file.save, self._contents, self._confirmed_unix)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
