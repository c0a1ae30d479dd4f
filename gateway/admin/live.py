"""The live values of the gateway for everybody who looks: the workers are asked once a second, while somebody listens, for all listeners.

A listener gets the samples of the last minutes first, then each new one. A listener that reads too slowly loses samples, never the others'.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from domain.clock import WallClock
from gateway.admin.problem import RETRY, AdminProblem
from gateway.process.worker_link import ask_every
from gateway.telemetry.live import LIVE_LINE, LiveFigures, LiveSample, WorkerLive

EVERY_S: Final = 1.0
KEPT: Final = 600
"""Samples that a new listener gets, without those of single backends: ten minutes."""
MAX_LISTENERS: Final = 32
"""Listeners at once; the admin port has room for other requests besides."""
MAX_BEHIND: Final = 5
"""Samples that a listener may be behind before it loses the oldest."""

AskLive = Callable[[], Awaitable[list[WorkerLive]]]


async def live_workers(run_dir: Path, timeout_s: float = 0.5) -> list[WorkerLive]:
    """The figures of the workers that answer within `timeout_s`; those of a worker of another version are left out."""
    found = []
    for answered in await ask_every(run_dir, LIVE_LINE, timeout_s):
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.msgpack.decode(answered, type=WorkerLive))
    return found


class LiveFeed:
    """Samples the workers while somebody listens.

    Args:
        ask: the workers' figures; those of the workers that answered.
        wall: seconds since the epoch.
        sleep: waits so many seconds.
    """

    def __init__(self, ask: AskLive, wall: WallClock, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        self._ask = ask
        self._wall = wall
        self._sleep = sleep
        self._figures = LiveFigures()
        self._kept: deque[LiveSample] = deque(maxlen=KEPT)
        self._listeners: set[asyncio.Queue[LiveSample]] = set()
        self._sampling: asyncio.Task[None] | None = None

    async def listen(self) -> AsyncGenerator[tuple[list[LiveSample], LiveSample | None], None]:
        """First the samples that were kept, with None; then no kept ones and each new sample.

        Raises:
            AdminProblem: too many listen already.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise AdminProblem(503, "overloaded", f"{MAX_LISTENERS} listeners get the live values already. Try later.", headers=RETRY)
        queue: asyncio.Queue[LiveSample] = asyncio.Queue(MAX_BEHIND)
        self._listeners.add(queue)
        try:
            if self._sampling is None or self._sampling.done():
                self._sampling = asyncio.create_task(self._sample())
            yield list(self._kept), None
            while True:
                yield [], await queue.get()
        finally:
            self._listeners.discard(queue)

    async def _sample(self) -> None:
        if self._kept and self._wall() - self._kept[-1].at_unix > 2 * EVERY_S:
            self._figures = LiveFigures()  # rates over the time without listeners would look like those of one second
        while self._listeners:
            sample = self._figures.sample(await self._ask(), self._wall())
            self._kept.append(msgspec.structs.replace(sample, backends=()))
            for queue in self._listeners:
                if queue.full():
                    with contextlib.suppress(asyncio.QueueEmpty):
                        queue.get_nowait()
                queue.put_nowait(sample)
            await self._sleep(EVERY_S)
