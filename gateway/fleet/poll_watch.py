"""Polls every backend, one loop per backend; the answers are evidence for its Health."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from backends.lora.loader import LoraLoader
from backends.ports import PollResult, Upstream
from domain.clock import Clock, Rng
from gateway.deps import Live
from gateway.fleet.health_watch import show
from gateway.fleet.loops import Loops, closed

Poll = Callable[[], Awaitable[PollResult]]
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
        self._upstreams: dict[tuple[str, str], Upstream] = {}
        self._polled: set[tuple[str, str]] = set()
        self._loops: Loops[tuple[str, str]] = Loops()

    def add(self, pool: str, backend_id: str, poll: Poll, upstream: Upstream | None = None) -> None:
        """Poll one more backend of the fleet, at once when `run` runs. `upstream` is closed when the backend leaves."""
        key = (pool, backend_id)
        self._polls[key] = poll
        if upstream is not None:
            self._upstreams[key] = upstream
        self._loops.add(key, partial(self._poll_on, key))

    def remove(self, pool: str, backend_id: str) -> Awaitable[None]:
        """Stop polling a backend at once; the awaitable that is returned ends when its connections are closed."""
        key = (pool, backend_id)
        self._polls.pop(key, None)
        self._polled.discard(key)
        return closed(self._loops.drop(key), self._upstreams.pop(key, None))

    async def first_round(self) -> None:
        """Poll every backend once; afterwards every backend is known to be up or down."""
        await asyncio.gather(*(self._poll(key) for key in self._polls))

    async def run(self) -> None:
        """Poll until cancelled."""
        await self._loops.run()

    async def _poll_on(self, key: tuple[str, str]) -> None:
        if key not in self._polled:
            await self._poll(key)  # the backend joined a moment ago
        while True:
            await asyncio.sleep(self._every_s * (0.75 + 0.5 * self._rng.random()))
            await self._poll(key)

    async def _poll(self, key: tuple[str, str]) -> None:
        pool, backend_id = key
        shelf = self._loras.shelf(pool, backend_id) if self._loras is not None and pool in self._loras.stands else None
        changes = shelf.changes if shelf is not None else 0
        polled = await self._polls[key]()
        if key not in self._polls:
            return  # the backend left meanwhile
        self._polled.add(key)
        if shelf is not None and polled.loras is not None:
            shelf.reported(polled.loras, changes)
        if polled.names and not polled.reason:
            self._live.names[backend_id] = polled.names
        health = self._live.health[backend_id]
        now = self._clock()
        before = health.standing
        health.polled(polled, now)
        if health.standing is not before:
            show(self._live, pool, now)
