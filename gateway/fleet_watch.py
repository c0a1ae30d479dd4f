"""Asks every backend whether it is there: one polling loop each; the answers are evidence for its Health."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from backends.lora_loader import LoraLoader
from backends.ports import Polled, Upstream
from domain.clock import Clock, Rng
from gateway.deps import Live
from gateway.health_watch import show

Poll = Callable[[], Awaitable[Polled]]
"""Polls one backend."""


class FleetWatch:
    """Polls every backend every `every_s` seconds, jittered so that gateways do not march in step."""

    def __init__(
        self,
        live: Live,
        polls: dict[tuple[str, str], Poll],
        every_s: float,
        clock: Clock,
        rng: Rng,
        ways: Iterable[Upstream] = (),
        loras: LoraLoader | None = None,
    ) -> None:
        self._live = live
        self._loras = loras
        self._polls = polls
        self._every_s = every_s
        self._clock = clock
        self._rng = rng
        self._ways = list(ways)

    async def first_round(self) -> None:
        """Hear of every backend once; afterwards the fleet is known, be it up or down."""
        await asyncio.gather(*(self._poll(key) for key in self._polls))

    async def run(self) -> None:
        """Poll until cancelled."""
        await asyncio.gather(*(self._run_one(key) for key in self._polls))

    async def close(self) -> None:
        """Close the connections polls went over."""
        for way in self._ways:
            await way.close()

    async def _run_one(self, key: tuple[str, str]) -> None:
        while True:
            await asyncio.sleep(self._every_s * (0.75 + 0.5 * self._rng.random()))
            await self._poll(key)

    async def _poll(self, key: tuple[str, str]) -> None:
        pool, backend_id = key
        shelf = self._loras.shelf(pool, backend_id) if self._loras is not None and pool in self._loras.stands else None
        changes = shelf.changes if shelf is not None else 0
        polled = await self._polls[key]()
        if shelf is not None and polled.loras is not None:
            shelf.reported(polled.loras, changes)
        if polled.names:
            self._live.names[backend_id] = polled.names
        health, now = self._live.health[backend_id], self._clock()
        before = health.standing
        health.polled(polled, now)
        if health.standing is not before:
            show(self._live, pool, now)
