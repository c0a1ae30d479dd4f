"""Keeps a worker's policies current: the folder is looked at every second, and read when it changed and stands still again.

A folder that cannot be understood changes nothing: the last good policies stay in force, and state, metrics and log say why. A request
is governed by the set that was in force when it was interpreted, to its end.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from gateway.worker_link import Answer, ask_every
from gateway.worker_state import PolicyState
from policies.compile import PolicySet
from policies.load import PolicyFolder
from policies.marks import Mark
from policies.problems import ConfigError

log = structlog.get_logger("tidegate.policies")

POLL_S: Final = 1.0
"""How often the folder is looked at. What was written is in force after two looks: several files are changed one after the other, and
nobody wants the first without the last."""
MAX_TOLD: Final = 20
"""Problems that are told; more are counted."""
RELOAD_LINE: Final = b"reload-policies\n"
"""What a worker is asked; it answers with its `PolicyState`."""
WITHIN_S: Final = 30.0
"""Longest wait for workers to read a folder; a thousand files take a few seconds."""


class Follower(Protocol):
    """What has policies and wants the current ones: `gateway.deps.Live` is one."""

    policies: PolicySet


class PolicyWatch:
    """See the module.

    Args:
        wall: seconds since the epoch.
        know: told the models of every set that comes into force.
    """

    def __init__(self, folder: PolicyFolder, wall: WallClock, know: Callable[[list[str]], None]) -> None:
        self._folder = folder
        self._wall = wall
        self._know = know
        self._live: Follower | None = None
        self._done: dict[str, Mark] = {}
        """The folder when it was read last, well or badly."""
        self._seen: dict[str, Mark] = {}
        """The folder when it was looked at last."""
        self._reading = asyncio.Lock()
        self.state = PolicyState("", 0.0)

    def first(self) -> PolicySet:
        """The policies to start with. Raises ConfigError: without any there is nothing to serve."""
        self._done = self._seen = self._folder.marks()
        made = self._folder.read()
        self._in_force(made)
        return made

    def follow(self, live: Follower) -> None:
        """Who gets the sets that come into force from now on."""
        self._live = live

    def answers(self) -> dict[bytes, Answer]:
        """What the worker can be asked about them, by its line."""

        async def reload(_question: bytes) -> bytes:
            return msgspec.msgpack.encode(await self.reload()) if self._live is not None else b""

        return {RELOAD_LINE: reload}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.look()

    async def look(self) -> None:
        """Read the folder when it changed and has not since the last look."""
        now = await asyncio.to_thread(self._folder.marks)
        still, self._seen = now == self._seen, now
        if still and now != self._done:
            await self.reload()

    async def reload(self) -> PolicyState:
        """Read the folder now. Returns what is in force, with what keeps the files from being so."""
        async with self._reading:
            self._done = await asyncio.to_thread(self._folder.marks)
            try:
                made = await asyncio.to_thread(self._folder.read)
            except ConfigError as error:
                self._refused([str(problem) for problem in error.problems])
            else:
                if self.state.problems or made.digest != self.state.digest:
                    log.info("policies in force", digest=made.digest, before=self.state.digest)
                if self._live is not None and made.digest != self._live.policies.digest:
                    self._live.policies = made
                self._in_force(made)
            return self.state

    def _in_force(self, made: PolicySet) -> None:
        self._know(made.models())
        self.state = PolicyState(made.digest, self._wall())

    def _refused(self, problems: list[str]) -> None:
        told = problems[:MAX_TOLD]
        if len(problems) > MAX_TOLD:
            told.append(f"and {len(problems) - MAX_TOLD} more")
        self.state = msgspec.structs.replace(self.state, problems=tuple(told), problem_count=len(problems))
        log.error("policies refused, the last good ones stay in force", digest=self.state.digest, problems=told)


class Reloading(Protocol):
    """The workers' policies, for the admin API."""

    async def reload(self) -> list[PolicyState]:
        """Every worker reads its folder now; what each has in force then."""
        ...


class WorkersReload:
    """Asks the workers of this gateway."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def reload(self) -> list[PolicyState]:
        """See `Reloading`."""
        answers = await ask_every(self._run_dir, RELOAD_LINE, WITHIN_S)
        return [msgspec.msgpack.decode(answer, type=PolicyState) for answer in answers if answer]
