"""Keeps a worker's rollouts current, and writes what it counted: both once a second.

While the database is away the last known rollouts stay as they are and sums are kept for ten minutes of usual intervals; rollouts cannot
end then, so whoever runs a canary through an outage of the database has to look after it himself.
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
WITHIN_S: Final = 10.0
"""Longest time for one look: a connection that neither answers nor ends is one to a database that is away, and a rollout that goes back
must not wait behind it."""
LAST_WRITE_S: Final = 2.0
"""Longest wait for the database at the end."""


class Follower(Protocol):
    """What deals requests out: `gateway.deps.Live` is one."""

    rollouts: InForce


class RolloutWatch:
    """See the module.

    Args:
        source: this worker's name in the store, unique over gateways and restarts.
    """

    def __init__(self, store: RolloutStore, source: str, wall: WallClock) -> None:
        self._store = store
        self._source = source
        self._wall = wall
        self._sums = Sums()
        self._seen: tuple[tuple[str, int], ...] | None = None
        self._told: tuple[str, ...] = ()
        self._is_away = False

    def observe(self, record: Record) -> None:
        """One closed Record."""
        self._sums.observe(record, self._wall())

    async def run(self, live: Follower) -> None:
        """Look until cancelled."""
        while True:
            await self.look(live)
            await asyncio.sleep(POLL_S)

    async def look(self, live: Follower) -> None:
        """Read what is in force, and write what was counted."""
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._read(live)
            async with asyncio.timeout(WITHIN_S):
                await self.write()
        except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, what is in force stays
            if not self._is_away:
                log.warning("rollouts cannot be read or written; they stay as they are", reason=f"{type(error).__name__}: {error}"[:200])
            self._is_away = True
        else:
            if self._is_away:
                log.info("rollouts can be read and written again")
            self._is_away = False

    async def close(self) -> None:
        """Write what the last requests came to."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.write(), LAST_WRITE_S)

    async def write(self) -> None:
        """Write what was counted since the last time; what cannot be written is tried again."""
        for rollout, intervals in list(self._sums.unwritten()):
            said = {index: msgspec.json.encode(interval).decode() for index, interval in intervals.items()}
            await self._store.put_sums(rollout, self._source, said)
            self._sums.wrote(rollout, intervals)

    async def _read(self, live: Follower) -> None:
        stored = await self._store.in_force()
        seen = tuple((one.id, one.version) for one in stored)
        if seen == self._seen:
            return
        made, problems = in_force(stored)
        self._seen = seen
        for problem in problems:
            if problem not in self._told:
                log.error(problem)
        self._told = problems
        before = {one.name: one for one in live.rollouts.all()}
        for one in made.all():
            was = before.pop(one.name, None)
            if was is None or (was.live, was.mirrored) != (one.live, one.mirrored):
                log.info("rollout", rollout=one.name, canary=one.canary, share=one.live, mirrored=one.mirrored)
        for name in before:
            log.info("rollout is no longer in force", rollout=name)
        live.rollouts = made
        self._sums.forget({one.id for one in made.all()})
