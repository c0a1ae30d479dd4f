"""Keeps known how many processes of the deployment send to each pool, so that each takes its part of what engines bear.

While the counter store is away the last count stands for as long as a silent process would count; then nobody knows, and each process
goes by what engines themselves report (`backends.limiter.Limiter.room`).
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
"""Between two beats; five may be lost."""
GONE_S: Final = 10.0
"""After so long without one a process is gone, and an answer of the store too old."""


class PartWatch:
    """One per worker.

    Args:
        share: told of each pool's part as it changes.
        going: whether this process takes no new requests any more, so that the others may have its part.
    """

    def __init__(
        self, presence: Presence, pools: Sequence[str], share: Callable[[str, Part], None], going: Callable[[], bool], clock: Clock
    ) -> None:
        self._presence, self._pools, self._share, self._going, self._clock = presence, tuple(pools), share, going, clock
        self._heard_at: float | None = None
        self._lost = False
        for pool in self._pools:
            share(pool, UNKNOWN)

    async def run(self) -> None:
        """Beat until cancelled; from when it goes on silently."""
        while not self._going():
            await self.beat()
            await asyncio.sleep(BEAT_S)
        with contextlib.suppress(CountersAway):
            await asyncio.gather(*map(self._presence.leave, self._pools))
        await asyncio.Event().wait()  # a loop that returns takes its worker with it

    async def beat(self) -> None:
        """One beat for each pool."""
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
