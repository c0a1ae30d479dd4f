"""Keeps what engines report of themselves current: one reading loop per backend, several times a second.

A reading that cannot be had leaves the last one in place, with its age; whoever decides by it looks at the age.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from backends.fetch import FetchError
from backends.ports import Upstream
from backends.signals import Signals, restarted
from domain.clock import Clock, Rng
from gateway.deps import Live
from gateway.health_watch import note_signals

log = structlog.get_logger("tidegate.signals")

Read = Callable[[], Awaitable[Signals]]
"""Reads one backend; raises FetchError or ValueError."""


class SignalWatch:
    """Reads every backend about every `every_s` seconds, jittered. A slow engine is read less often: the next reading begins
    only after the last one is over."""

    def __init__(self, live: Live, reads: dict[str, Read], every_s: float, clock: Clock, rng: Rng, ways: Iterable[Upstream] = ()) -> None:
        self._live = live
        self._reads = reads
        self._every_s = every_s
        self._clock = clock
        self._rng = rng
        self._ways = list(ways)
        self._trouble = dict.fromkeys(reads, "")

    async def run(self) -> None:
        """Read until cancelled."""
        await asyncio.gather(*(self._run_one(backend) for backend in self._reads), asyncio.Event().wait())

    async def _run_one(self, backend: str) -> None:
        while True:
            await self.read_once(backend)
            await asyncio.sleep(self._every_s * (0.75 + 0.5 * self._rng.random()))

    async def read_once(self, backend: str) -> None:
        """One reading. Trouble is logged when it begins, changes or ends, not ten times a second."""
        try:
            signals = await self._reads[backend]()
        except (FetchError, ValueError) as error:
            trouble = str(error)[:200]
        else:
            before = self._live.signals.get(backend)
            self._live.signals[backend] = signals
            note_signals(self._live, backend, signals, self._clock(), restarted=before is not None and restarted(before, signals))
            trouble = f"no series for {', '.join(signals.missing)}: taken for unknown" if signals.missing else ""
        if trouble != self._trouble[backend]:
            self._trouble[backend] = trouble
            if trouble:
                log.warning("signals in doubt", backend=backend, reason=trouble)
            else:
                log.info("signals complete", backend=backend)

    async def close(self) -> None:
        """Close the connections readings went over."""
        for way in self._ways:
            await way.close()
