"""Rollouts that an operator ended while the database was away: this gateway sends their traffic back to the baseline at once, and writes
the decision when the database is there again.

The order lies in a file beside the directory's copy, so that a restart of the admin process during the outage does not lose it. The workers
are told in the same way as by the keeper, and again each second until the decision is written: a worker drops what it was told as soon as
it reads another version of the rollout, and another gateway may write one when the database is back.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from domain.clock import WallClock
from gateway.rollouts.keeper import GatewayWorkers, RolloutTransaction, message
from gateway.sync.pending import PendingFile
from gateway.ticks import next_tick
from policies.rollout.progress import NotNow, abort
from policies.rollout.state import RolloutStatus, UnreadableRollout, brief, read, standing, state_text
from tenancy.audit import Entry, canonical

EVERY_S: Final = 1.0
"""Seconds between two attempts to write; the keeper waits three seconds after an outage before it decides anything."""
WITHIN_S: Final = 10.0
"""Time limit of one attempt, for connections that neither answer nor end."""
ACTION: Final = "rollout.abort"

log = structlog.get_logger("tidegate.rollouts")


class PendingAbort(msgspec.Struct, frozen=True):
    """One rollout to end, with its audit row to come."""

    rollout: str
    """The rollout's id."""
    name: str
    reason: str
    at_unix: float
    actor: str
    role: str
    address: str


class PendingAborts(PendingFile[PendingAbort]):
    """The file of aborts. The admin process alone writes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, tuple[PendingAbort, ...], "aborts of rollouts")

    def add(self, entry: PendingAbort) -> None:
        """Keep one more entry; of a rollout that has one already, the first stays. Raises OSError."""
        with self.changing:
            entries = self.entries()
            if all(known.rollout != entry.rollout for known in entries):
                self.replace((*entries, entry))


class RolloutAborts:
    """Ends rollouts without the database; one per gateway, in the admin process.

    Args:
        workers: the workers of this gateway.
        change: opens a transaction in which the change and its audit row are one.
        tell: called with the webhook message of each abort after it is written.
        in_force: the rollouts in force as the keeper read them last.
    """

    def __init__(
        self,
        pending: PendingAborts,
        workers: GatewayWorkers,
        change: Callable[[], AbstractAsyncContextManager[RolloutTransaction]],
        wall: WallClock,
        tell: Callable[[Mapping[str, Any]], None],
        in_force: Callable[[], Sequence[RolloutStatus]],
    ) -> None:
        self._pending = pending
        self._workers = workers
        self._change = change
        self._wall = wall
        self._tell = tell
        self._in_force = in_force

    def known(self, name: str) -> RolloutStatus | None:
        """The rollout in force of this name, as it was read last; None for one that this gateway does not know."""
        return next((stands for stands in self._in_force() if stands.name == name), None)

    async def order(self, entry: PendingAbort) -> None:
        """Keep the abort, and send the rollout's traffic back to the baseline now. Raises OSError where it cannot be kept."""
        await asyncio.to_thread(self._pending.add, entry)
        await self._send_back()

    async def run(self) -> None:
        """Try every `EVERY_S` until cancelled."""
        while True:
            await next_tick(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Tell the workers again, and write the aborts that the database takes."""
        if not self._pending.entries():
            return
        await self._send_back()
        for entry in self._pending.entries():
            try:
                async with asyncio.timeout(WITHIN_S):
                    written = await self._write(entry)
                if written:
                    await asyncio.to_thread(self._pending.exchange, entry, None)
            except Exception as error:  # noqa: BLE001 - drivers raise their own errors; the next attempt may succeed
                log.debug("an abort waits for the database", rollout=entry.name, error=f"{type(error).__name__}: {error}"[:200])
                return

    async def _send_back(self) -> None:
        try:
            await self._workers.send_back([entry.rollout for entry in self._pending.entries()])
        except OSError as error:  # the next attempt tells them
            log.error("workers cannot be told of aborts", error=f"{type(error).__name__}: {error}"[:200])

    async def _write(self, entry: PendingAbort) -> bool:
        """Write one abort; False when the rollout was changed meanwhile, so that it has to be read again."""
        now = self._wall()
        async with self._change() as books:
            stored = next((rollout for rollout in await books.rollouts.in_force() if rollout.id == entry.rollout), None)
            if stored is None:
                return True  # ended meanwhile, by the keeper or by an operator at another gateway
            try:
                current = read(stored)
                after = abort(current.plan, current.state, now, f"{entry.reason} (ordered while the database was away)").state
            except (NotNow, UnreadableRollout) as why:
                log.error("an abort that was ordered while the database was away came too late", rollout=entry.name, reason=str(why))
                return True
            before = standing(stored, current, now)
            new = msgspec.structs.replace(stored, state=state_text(after), open=False, changed_unix=now)
            if not await books.rollouts.write(new):
                return False
            stands = standing(new, msgspec.structs.replace(current, state=after), now)
            seen, now_seen = canonical(brief(before)), canonical(brief(stands))
            row = Entry(entry.actor, entry.role, entry.address, ACTION, f"rollout/{entry.name}", before=seen, after=now_seen)
            await books.change.write_down(row)
        log.info("an abort is in the database now", rollout=entry.name, reason=stands.reason)
        self._tell(message(ACTION, stands))
        return True
