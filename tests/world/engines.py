"""The engines of a world: `backends.simengine`, whole, and what each says it did, which bills are compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from backends.simengine.answering import Answer
from backends.simengine.connection import SimConnection
from backends.simengine.faults import FaultRule
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from tests.world.hosts import Host
from tests.world.loop import VirtualLoop

PORT = 8000


@dataclass
class Job:
    """One request as an engine saw it."""

    engine: str
    request_id: str
    salt: str
    prompt: str
    answer: Answer | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(len(one.prompt) for one in self.answer.sequences) if self.answer is not None else 0

    @property
    def produced(self) -> int:
        """Tokens it has generated."""
        return sum(one.produced for one in self.answer.sequences) if self.answer is not None else 0


class _Engine(SimEngine):
    def __init__(self, settings: SimSettings, told: Callable[[Job], None]) -> None:
        super().__init__(settings)
        self._on_job = told

    def _start(self, connection: SimConnection, kind: str) -> None:
        request: dict[str, Any] = msgspec.json.decode(connection.body)
        name = connection.headers.get(b"x-request-id", b"").decode()
        prompt = str(request["messages"][-1]["content"])
        job = Job(self.settings.host, name, str(request.get("cache_salt") or ""), prompt)
        before = len(self._answers)
        super()._start(connection, kind)
        if len(self._answers) > before:
            job.answer = next(reversed(self._answers.values()))
        self._on_job(job)


class Engine:
    """One engine at an address that outlives it."""

    def __init__(self, loop: VirtualLoop, name: str, settings: SimSettings, told: Callable[[Job], None]) -> None:
        self.name, self.loop, self._told = name, loop, told
        self._settings = msgspec.structs.replace(settings, host=name, port=PORT)
        self.host = Host(name)
        self.sim: SimEngine | None = None

    async def start(self) -> None:
        """Begin with an empty cache."""
        self.host = Host(self.name)
        self.sim = _Engine(self._settings, self._told)
        await self.loop.begin(self.host, self.sim.__aenter__())

    def kill(self) -> None:
        """It is gone, with whatever it had."""
        if self.host.alive:
            self.loop.end_power(self.host)
        self.sim = None

    def misbehave(self, *rules: FaultRule) -> None:
        """Standing faults; none to behave."""
        if self.sim is not None:
            self.sim.misbehave(rules)
