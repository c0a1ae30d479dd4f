"""Keeps a worker's policies current: polls the policy folder every second, and reads it when it has changed and is stable again.

A folder with mistakes changes nothing: the last good policies stay active, and state, metrics and log give the reason. A request is
governed to its end by the policies that were active when it was interpreted.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from gateway.process.snapshots import PolicyState
from gateway.process.worker_link import Answer, ask_every
from gateway.ticks import next_tick
from policies.compile import PolicySet
from policies.load import PolicyFolder
from policies.rollout.baseline_use import uses_of_baseline
from policies.rollout.document import document_of
from policies.yaml.folder import Mark
from policies.yaml.problems import ConfigError

log = structlog.get_logger("tidegate.policies")

POLL_S: Final = 1.0
"""Seconds between two polls of the folder. A change is active after two polls: several files are changed one after the other, and the first
change must not take effect without the last."""
MAX_TOLD: Final = 20
"""Problems that are reported in words; the others are counted."""
RELOAD_LINE: Final = b"reload-policies\n"
"""The question that makes a worker reload; it answers with its `PolicyState`."""
USE_LINE: Final = b"uses-of-baseline\n"
"""The question for the models and prompts that lead to a rollout's baseline; followed by the rollout's document."""
WITHIN_S: Final = 30.0
"""The longest wait for workers to read a folder; a thousand files take a few seconds."""


class PolicyFollower(Protocol):
    """Holds the active policies: `gateway.deps.Live` is one."""

    policies: PolicySet


class PolicyWatch:
    """Reads the policy folder of one worker, and hands new policies to its follower.

    Args:
        wall: seconds since the epoch.
        know: called with the models of every set of policies that becomes active.
    """

    def __init__(self, folder: PolicyFolder, wall: WallClock, know: Callable[[list[str]], None]) -> None:
        self._folder = folder
        self._wall = wall
        self._know = know
        self._live: PolicyFollower | None = None
        self._done: dict[str, Mark] = {}
        """The files' marks when the folder was read last, with or without mistakes."""
        self._seen: dict[str, Mark] = {}
        """The files' marks at the last poll."""
        self._reading = asyncio.Lock()
        self.state = PolicyState("", 0.0)

    def first(self) -> PolicySet:
        """The policies to start with. Raises ConfigError: without policies there is nothing to serve."""
        self._done = self._seen = self._folder.marks()
        policies = self._folder.read()
        self._in_force(policies)
        return policies

    def follow(self, live: PolicyFollower) -> None:
        """Hand every new set of policies to `live` from now on."""
        self._live = live

    def answers(self) -> dict[bytes, Answer]:
        """The handlers of questions about policies, by their line."""

        async def reload(_question: bytes) -> bytes:
            return msgspec.msgpack.encode(await self.reload()) if self._live is not None else b""

        async def use(question: bytes) -> bytes:
            if self._live is None:
                return b""
            policies = self._live.policies
            document = document_of(question.decode())
            return msgspec.msgpack.encode(await asyncio.to_thread(lambda: list(uses_of_baseline(policies, document))))

        return {RELOAD_LINE: reload, USE_LINE: use}

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await next_tick(POLL_S)
            await self.look()

    async def look(self) -> None:
        """Poll once: read the folder when it differs from the last reading and is unchanged since the last poll."""
        now = await asyncio.to_thread(self._folder.marks)
        is_stable = now == self._seen
        self._seen = now
        if is_stable and now != self._done:
            await self.reload()

    async def reload(self) -> PolicyState:
        """Read the folder now. Returns the active policies' state, with the problems that keep the files from becoming active."""
        async with self._reading:
            self._done = await asyncio.to_thread(self._folder.marks)
            try:
                policies = await asyncio.to_thread(self._folder.read)
            except ConfigError as error:
                self._refused([str(problem) for problem in error.problems])
            else:
                if self.state.problems or policies.digest != self.state.digest:
                    log.info("policies in force", digest=policies.digest, before=self.state.digest)
                if self._live is not None and policies.digest != self._live.policies.digest:
                    self._live.policies = policies
                self._in_force(policies)
            return self.state

    def _in_force(self, policies: PolicySet) -> None:
        self._know(policies.models())
        warnings = _told(list(map(str, policies.warnings)))
        if warnings and policies.digest != self.state.digest:
            log.warning("policies in force that are hardly meant", digest=policies.digest, warnings=warnings)
        self.state = PolicyState(policies.digest, self._wall(), warnings=tuple(warnings))

    def _refused(self, problems: list[str]) -> None:
        shown = _told(problems)
        self.state = msgspec.structs.replace(self.state, problems=tuple(shown), problem_count=len(problems))
        log.error("policies refused, the last good ones stay in force", digest=self.state.digest, problems=shown)


def _told(problems: list[str]) -> list[str]:
    """The first problems in words, and the number of the others."""
    return problems[:MAX_TOLD] + ([f"and {len(problems) - MAX_TOLD} more"] if len(problems) > MAX_TOLD else [])


class Reloading(Protocol):
    """The workers' policies, for the admin API."""

    async def reload(self) -> list[PolicyState]:
        """Make every worker read its folder now; returns the state of each."""
        ...

    async def uses_of_baseline(self, document: str) -> list[str] | None:
        """The models and prompts of active policies that lead to the baseline of a rollout (its stored document), in words; None when no
        worker answers."""
        ...


class WorkersReload:
    """Asks the workers of this gateway."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def reload(self) -> list[PolicyState]:
        answers = await ask_every(self._run_dir, RELOAD_LINE, WITHIN_S)
        return [msgspec.msgpack.decode(answer, type=PolicyState) for answer in answers if answer]

    async def uses_of_baseline(self, document: str) -> list[str] | None:
        answers = await ask_every(self._run_dir, USE_LINE + document.encode(), WITHIN_S)
        uses = [msgspec.msgpack.decode(answer, type=list[str]) for answer in answers]
        return sorted(set().union(*uses)) if uses else None
