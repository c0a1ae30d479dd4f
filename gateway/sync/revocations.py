"""Revocations that the database could not take: in force on this gateway at once, written to the database when it is there again.

`PendingRevocations` keeps them in a file beside the directory's copy, so that they outlive a restart of the gateway during the outage.
Every process reads the file each second and refuses the keys; the admin process writes them to the database (`RevocationWriter`). An entry
stays in the file for a minute after it is written, until every process has read the database again, and until the kept directory has it.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from domain.identity import KeyId, TenantId
from gateway.sync.pending import PendingFile
from gateway.ticks import next_tick
from tenancy.accounts import Contents
from tenancy.audit import Entry, canonical
from tenancy.directory_ports import DirectoryChange, NotFound
from tenancy.journal import Change
from tenancy.keys import revoked

log = structlog.get_logger("tidegate.directory")

LOOK_S: Final = 1.0
"""Seconds between two looks at the file: with the compilation of the directory, a key is refused within 5 s (R34)."""
WRITE_S: Final = 2.0
"""Seconds between two attempts to write the entries to the database."""
KEEP_S: Final = 90.0
"""Seconds for which a written entry stays in the file; every process reads the database within 67: poll, two questions and load."""
MAX_PENDING: Final = 10_000
"""Entries in the file; a tenant has as many keys at most."""


class TooManyPending(Exception):
    """`MAX_PENDING` revocations wait for the database."""


class PendingRevocation(msgspec.Struct, frozen=True):
    """One key, with its audit row to come."""

    key_id: KeyId
    tenant: TenantId
    at_unix: float
    actor: str
    role: str
    address: str
    written_unix: float | None = None
    """When the database took it; None before."""


class PendingRevocations(PendingFile[PendingRevocation]):
    """The file of revocations. The admin process alone writes it, from several threads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, tuple[PendingRevocation, ...], "revocations")

    def revoked(self) -> dict[KeyId, float]:
        """When each key was revoked, by its id."""
        return {entry.key_id: entry.at_unix for entry in self.entries()}

    def add(self, entry: PendingRevocation) -> None:
        """Keep one more entry; of a key that has one already, the first stays. Raises OSError, TooManyPending."""
        with self.changing:
            entries = self.entries()
            if any(known.key_id == entry.key_id for known in entries):
                return
            if len(entries) >= MAX_PENDING:
                raise TooManyPending
            self.replace((*entries, entry))


def with_revoked(contents: Contents, at_unix: Mapping[KeyId, float]) -> Contents:
    """The contents with these keys revoked."""
    if not at_unix:
        return contents
    keys = tuple(revoked(key, at_unix[key.id]) if key.id in at_unix else key for key in contents.keys)
    return msgspec.structs.replace(contents, keys=keys)


class RevocationTransaction(Protocol):
    """The stores that take part in one transaction."""

    @property
    def change(self) -> Change:
        """Writes the audit row."""
        ...

    @property
    def directory(self) -> DirectoryChange:
        """The keys, in the same transaction."""
        ...


class RevocationWriter:
    """Writes pending revocations to the database, each with its audit row; runs in the admin process.

    Args:
        change: opens a transaction.
        wall: seconds since the epoch.
        kept_unix: the time to which the kept directory was confirmed; infinity where none is kept. A start without the database reads the
            kept directory, so an entry stays until that directory has it too.
    """

    def __init__(
        self,
        pending: PendingRevocations,
        change: Callable[[], AbstractAsyncContextManager[RevocationTransaction]],
        wall: WallClock,
        kept_unix: Callable[[], float],
    ) -> None:
        self._pending = pending
        self._change = change
        self._wall = wall
        self._kept_unix = kept_unix

    async def run(self) -> None:
        """Try every `WRITE_S` until cancelled."""
        while True:
            await next_tick(WRITE_S)
            try:
                await self.write()
            except OSError as error:  # a full disk or a read-only folder; the entries stay in force until the next attempt
                log.error("revocations cannot be kept", reason=error.strerror)

    async def write(self) -> None:
        """Write the entries that the database lacks, and drop entries that it has had for `KEEP_S`."""
        for entry in self._pending.entries():
            if entry.written_unix is None:
                try:
                    await self._write(entry)
                except Exception as error:  # noqa: BLE001 - drivers raise their own errors; the next attempt may succeed
                    log.debug("a revocation waits for the database", key=entry.key_id, error=f"{type(error).__name__}: {error}"[:200])
                    break
                await asyncio.to_thread(self._pending.exchange, entry, msgspec.structs.replace(entry, written_unix=self._wall()))
                log.info("a revocation is in the database now", key=entry.key_id)
            elif self._wall() - entry.written_unix >= KEEP_S and await asyncio.to_thread(self._kept_unix) > entry.written_unix:
                await asyncio.to_thread(self._pending.exchange, entry, None)

    async def _write(self, entry: PendingRevocation) -> None:
        async with self._change() as books:
            try:
                record = await books.directory.keys.get(entry.tenant, entry.key_id)
            except NotFound:
                return  # it was deleted meanwhile
            if record.revoked_unix is not None:
                return
            await books.directory.keys.update(entry.tenant, revoked(record, entry.at_unix))
            after = canonical({"id": entry.key_id, "revoked_unix": entry.at_unix, "note": "revoked while the database was away"})
            target = f"tenant/{entry.tenant}/key/{entry.key_id}"
            await books.change.write_down(Entry(entry.actor, entry.role, entry.address, "key.revoke", target, entry.tenant, after=after))
