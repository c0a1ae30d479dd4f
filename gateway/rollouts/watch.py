"""Keeps a worker's rollouts current, and writes its sums to the database, both once a second.

While the database is away the last known rollouts stay active and sums are held for ten minutes of usual intervals. Rollouts cannot end
then, so operators have to watch a canary themselves during an outage of the database.
"""

import asyncio
import contextlib
from typing import Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from domain.rollouts import RolloutStore
from gateway.record import Record
from gateway.rollouts.sampling import Sums
from policies.rollout.in_force import InForce, in_force

log = structlog.get_logger("tidegate.rollouts")

POLL_S: Final = 1.0
"""Seconds between two polls of the database."""
WITHIN_S: Final = 10.0
"""Time limit for the reads and for the writes of one poll: a connection that neither answers nor ends counts as an outage, and a rollback
must not wait behind it."""
LAST_WRITE_S: Final = 2.0
"""Time limit for the last write at the end of the worker."""


class Follower(Protocol):
    """Holds the active rollouts: `gateway.deps.Live` is one."""

    rollouts: InForce


class RolloutWatch:
    """Polls the rollouts of the database and writes this worker's sums.

    Args:
        source: this worker's name in the store, unique over gateways and restarts.
        wall: seconds since the epoch.
    """

    def __init__(self, store: RolloutStore, source: str, wall: WallClock) -> None:
        self._store = store
        self._source = source
        self._wall = wall
        self._sums = Sums()
        self._seen: tuple[tuple[str, int], ...] | None = None
        self._logged_problems: tuple[str, ...] = ()
        self._is_away = False

    def observe(self, record: Record) -> None:
        """Count one finished request."""
        self._sums.observe(record, self._wall())

    async def run(self, live: Follower) -> None:
        """Poll until cancelled."""
        while True:
            await self.look(live)
            await asyncio.sleep(POLL_S)

    async def look(self, live: Follower) -> None:
        """Read the active rollouts, and write the sums."""
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._read(live)
            async with asyncio.timeout(WITHIN_S):
                await self.write()
        except Exception as error:  # noqa: BLE001 - drivers raise their own errors; whatever it is, the active rollouts stay
            if not self._is_away:
                log.warning("rollouts cannot be read or written; they stay as they are", reason=f"{type(error).__name__}: {error}"[:200])
            self._is_away = True
        else:
            if self._is_away:
                log.info("rollouts can be read and written again")
            self._is_away = False

    async def close(self) -> None:
        """Write the sums of the last requests; a failure is ignored."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.write(), LAST_WRITE_S)

    async def write(self) -> None:
        """Write the sums that changed since the last write; sums that cannot be written are tried again."""
        for rollout, intervals in list(self._sums.unwritten()):
            texts = {index: msgspec.json.encode(interval).decode() for index, interval in intervals.items()}
            await self._store.put_sums(rollout, self._source, texts)
            self._sums.wrote(rollout, intervals)

    async def _read(self, live: Follower) -> None:
        stored = await self._store.in_force()
        versions = tuple((rollout.id, rollout.version) for rollout in stored)
        if versions == self._seen:
            return
        active, problems = in_force(stored)
        self._seen = versions
        for problem in problems:
            if problem not in self._logged_problems:
                log.error(problem)
        self._logged_problems = problems
        before = {running.name: running for running in live.rollouts.all()}
        for running in active.all():
            was = before.pop(running.name, None)
            if was is None or (was.live, was.mirrored) != (running.live, running.mirrored):
                log.info("rollout", rollout=running.name, canary=running.canary, share=running.live, mirrored=running.mirrored)
        for name in before:
            log.info("rollout is no longer in force", rollout=name)
        live.rollouts = active
        self._sums.keep_only({running.id for running in active.all()})
