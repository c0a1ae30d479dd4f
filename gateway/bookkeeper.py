"""The admin process's end of the ledger: what workers wrote down is booked in SQL, and days that are over are dropped.

Here because booking a request costs more CPU than relaying one, and this process serves nobody who waits.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from tenancy.usage import LedgerAway, UsageStore

KEEP_EVERY_S: Final = 3600.0
"""How often old days are dropped and days to come prepared."""
CLOSE_WITHIN_S: Final = 4.0
"""At the end: longest wait for SQL. What it does not take is booked after the next start."""

log = structlog.get_logger("tidegate.ledger")


class BookingState(msgspec.Struct, frozen=True):
    """How booking stands. Counts since the admin process started."""

    booked: int = 0
    """Events new in SQL."""
    repeated: int = 0
    """Events that were there already."""
    refused: int = 0
    """Events that SQL never takes."""
    damaged: int = 0
    """Places on disk that could not be read."""
    waiting_bytes: int = 0
    """Sealed on disk and not booked."""
    lag_s: float = 0.0
    """Age of the oldest of it."""
    away: str = ""
    """Why SQL cannot be reached; empty while it can."""
    lost: int = 0
    """Of those booked: requests whose worker died under them."""
    crowded: int = 0
    """Events whose end user is beyond the bound on a tenant's labels a day."""


class Ships(Protocol):
    """The shipper, as this module needs it."""

    away: str
    waiting_bytes: int
    lag_s: float

    @property
    def counts(self) -> Any:
        """booked, repeated, refused, damaged, lost, crowded."""
        ...

    async def run(self) -> None:
        """Until cancelled."""
        ...

    async def close(self, within_s: float) -> bool:
        """Ship what is left; false when something stays."""
        ...


class Bookkeeper:
    """One per host."""

    def __init__(
        self, shipper: Ships, store: UsageStore, wall: WallClock, retention_days: int, close: Callable[[], Awaitable[None]]
    ) -> None:
        self._shipper = shipper
        self._store = store
        self._wall = wall
        self._retention_days = retention_days
        self._close = close
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Book and keep from now on, until `close`."""
        self._tasks = [asyncio.create_task(self._shipper.run()), asyncio.create_task(self._keep_on())]

    def state(self) -> BookingState:
        """Numbers for metrics."""
        ships, counts = self._shipper, self._shipper.counts
        return BookingState(
            counts.booked,
            counts.repeated,
            counts.refused,
            counts.damaged,
            ships.waiting_bytes,
            ships.lag_s,
            ships.away,
            counts.lost,
            counts.crowded,
        )

    async def close(self) -> None:
        """When every worker has ended: book what they wrote last, if SQL is there, and let its connections go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not await self._shipper.close(CLOSE_WITHIN_S):
            log.warning("usage stays on disk and is booked later", bytes=self._shipper.waiting_bytes, why=self._shipper.away)
        await self._close()

    async def _keep_on(self) -> None:
        while True:
            await self.keep()
            await asyncio.sleep(KEEP_EVERY_S)

    async def keep(self) -> None:
        """Prepare the days to come and drop those that are over; a database that is away is asked again the next time."""
        today = dt.datetime.fromtimestamp(self._wall(), dt.UTC).date()
        try:
            await self._store.prepare(today)
            dropped = await self._store.prune(today - dt.timedelta(days=self._retention_days))
        except LedgerAway as error:
            log.warning("retention has to wait", why=str(error)[:300])
            return
        if dropped:
            log.info("old usage dropped", dropped=dropped, kept_days=self._retention_days)
