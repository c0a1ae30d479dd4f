"""Tracks how many worker processes of the deployment send to each pool, so that each uses its share of the concurrency limits.

While the counter store is away the last count holds for `GONE_S`, as long as a silent process is counted. After that the number is
unknown, and each process goes by the load that engines themselves report (`backends.concurrency_limit.Limiter.room`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from domain.clock import Clock
from gateway.placing.limits import UNKNOWN, Part
from tenancy.ports import CountersAway, Presence

log = structlog.get_logger("tidegate.limits")

BEAT_S: Final = 2.0
"""Time between two heartbeats; five may be lost."""
GONE_S: Final = 10.0
"""Time without a heartbeat after which a process is gone, and age at which the store's last answer is too old."""


class PartWatch:
    """Sends one worker's heartbeats to the presence store, and passes on its share of each pool.

    Args:
        share: called with each pool's share whenever the number of processes is known anew.
        going: whether this process drains, so that the others may use its share.
    """

    def __init__(
        self, presence: Presence, pools: Sequence[str], share: Callable[[str, Part], None], going: Callable[[], bool], clock: Clock
    ) -> None:
        self._presence = presence
        self._pools = tuple(pools)
        self._share = share
        self._going = going
        self._clock = clock
        self._heard_at: float | None = None
        self._lost = False
        for pool in self._pools:
            share(pool, UNKNOWN)

    async def run(self) -> None:
        """Send heartbeats until the worker drains, then leave every pool; runs until cancelled."""
        while not self._going():
            await self.beat()
            await asyncio.sleep(BEAT_S)
        with contextlib.suppress(CountersAway):
            await asyncio.gather(*map(self._presence.leave, self._pools))
        await asyncio.Event().wait()  # a loop that returns takes its worker with it

    async def beat(self) -> None:
        """Send one heartbeat for each pool, and pass on the shares."""
        try:
            seats = await asyncio.gather(*map(self._presence.beat, self._pools))
        except CountersAway as away:
            self._away(str(away))
            return
        self._heard_at = self._clock()
        if self._lost:
            self._lost = False
            log.info("gateways know of each other again", processes=max(seat.count for seat in seats))
        for pool, seat in zip(self._pools, seats, strict=True):
            self._share(pool, Part(max(1, seat.count), seat.rank))

    def _away(self, why: str) -> None:
        if self._lost or (self._heard_at is not None and self._clock() - self._heard_at <= GONE_S):
            return
        self._lost = True
        log.warning("not known how many gateways there are; what each sends goes by what engines report alone", reason=why)
        for pool in self._pools:
            self._share(pool, UNKNOWN)
