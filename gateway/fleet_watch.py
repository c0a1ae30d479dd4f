"""Keeps the Fleet snapshot current: one polling loop per backend, each result replacing the snapshot whole."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from backends.ports import Polled, Upstream
from domain.clock import Rng
from gateway.deps import Live
from routing.fleet import Backend, State

log = structlog.get_logger("tidegate.fleet")

FAILURES_TO_GO_DOWN = 3
"""A backend that was up stays in rotation until this many polls in a row failed: one failed probe is often a long prefill
(sglang#9198). Failed requests fail over meanwhile."""

Poll = Callable[[], Awaitable[Polled]]
"""Polls one backend."""


class FleetWatch:
    """Polls every backend every `every_s` seconds, jittered so that gateways do not march in step."""

    def __init__(self, live: Live, polls: dict[tuple[str, str], Poll], every_s: float, rng: Rng, ways: Iterable[Upstream] = ()) -> None:
        self._live = live
        self._polls = polls
        self._every_s = every_s
        self._rng = rng
        self._ways = list(ways)
        self._failures = dict.fromkeys(polls, 0)

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
        polled = await self._polls[key]()
        reason = polled.reason
        if polled.names:
            self._live.names[backend_id] = polled.names
        self._failures[key] = self._failures[key] + 1 if reason else 0
        known = next(b for b in self._live.fleet.pools[pool].backends if b.id == backend_id)
        if reason and known.state is State.UP and self._failures[key] < FAILURES_TO_GO_DOWN:
            return
        state = State.DOWN if reason else State.UP
        if state is not known.state:
            tell = log.info if state is State.UP else log.warning
            tell(f"backend {state.value}", pool=pool, backend=backend_id, reason=reason)
        self._live.fleet = self._live.fleet.with_backend(Backend(backend_id, pool, state, reason))
