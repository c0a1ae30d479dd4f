"""Asks every backend whether it is there: one polling loop each; the answers are evidence for its Health."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from backends.lora_loader import LoraLoader
from backends.ports import Polled, Upstream
from domain.clock import Clock, Rng
from gateway.deps import Live
from gateway.fleet.health_watch import show
from gateway.fleet.loops import Loops, closed

Poll = Callable[[], Awaitable[Polled]]
"""Polls one backend."""


class FleetWatch:
    """Polls every backend every `every_s` seconds, jittered so that gateways do not march in step."""

    def __init__(self, live: Live, every_s: float, clock: Clock, rng: Rng, loras: LoraLoader | None = None) -> None:
        self._live = live
        self._loras = loras
        self._every_s = every_s
        self._clock = clock
        self._rng = rng
        self._polls: dict[tuple[str, str], Poll] = {}
        self._ways: dict[tuple[str, str], Upstream] = {}
        self._heard_of: set[tuple[str, str]] = set()
        self._loops: Loops[tuple[str, str]] = Loops()

    def add(self, pool: str, backend_id: str, poll: Poll, way: Upstream | None = None) -> None:
        """Poll one more backend, which is in the fleet already; at once when `run` runs. `way` is closed when it leaves."""
        key = (pool, backend_id)
        self._polls[key] = poll
        if way is not None:
            self._ways[key] = way
        self._loops.add(key, partial(self._run_one, key))

    def remove(self, pool: str, backend_id: str) -> Awaitable[None]:
        """Poll it no more, from now on; what is returned ends when its connections are closed."""
        key = (pool, backend_id)
        self._polls.pop(key, None)
        self._heard_of.discard(key)
        return closed(self._loops.drop(key), self._ways.pop(key, None))

    async def first_round(self) -> None:
        """Hear of every backend once; afterwards the fleet is known, be it up or down."""
        await asyncio.gather(*(self._poll(key) for key in self._polls))

    async def run(self) -> None:
        """Poll until cancelled."""
        await self._loops.run()

    async def _run_one(self, key: tuple[str, str]) -> None:
        if key not in self._heard_of:
            await self._poll(key)  # it joined a moment ago
        while True:
            await asyncio.sleep(self._every_s * (0.75 + 0.5 * self._rng.random()))
            await self._poll(key)

    async def _poll(self, key: tuple[str, str]) -> None:
        pool, backend_id = key
        shelf = self._loras.shelf(pool, backend_id) if self._loras is not None and pool in self._loras.stands else None
        changes = shelf.changes if shelf is not None else 0
        polled = await self._polls[key]()
        if key not in self._polls:
            return  # it left meanwhile
        self._heard_of.add(key)
        if shelf is not None and polled.loras is not None:
            shelf.reported(polled.loras, changes)
        if polled.names and not polled.reason:
            self._live.names[backend_id] = polled.names
        health, now = self._live.health[backend_id], self._clock()
        before = health.standing
        health.polled(polled, now)
        if health.standing is not before:
            show(self._live, pool, now)
