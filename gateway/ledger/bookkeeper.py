"""The admin process's part of the ledger: writes the workers' usage events to SQL, and drops days beyond the retention.
Blocks by guard rules, which come with usage events, are written to the audit with them.

It runs here because writing a request to SQL costs more CPU than relaying one, and no caller waits for this process.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import structlog

from domain.clock import WallClock
from gateway.process.background import kept_up
from tenancy.usage import LedgerAway, UsageStore

KEEP_EVERY_S: Final = 3600.0
"""How often old days are dropped and coming days prepared."""
SUM_UP_EVERY_S: Final = 60.0
"""How often the blocks by guard rules that have no audit rows of their own are summed up."""
CLOSE_WITHIN_S: Final = 4.0
"""The longest wait for SQL at the end. Events that it does not take are written after the next start."""

log = structlog.get_logger("tidegate.ledger")


class BookingState(msgspec.Struct, frozen=True):
    """The state of the transfer to SQL. Counts since the admin process started."""

    booked: int = 0
    """Events new in SQL."""
    repeated: int = 0
    """Events that were in SQL already."""
    refused: int = 0
    """Events that SQL never accepts."""
    damaged: int = 0
    """Places on disk that could not be read."""
    waiting_bytes: int = 0
    """Bytes of usage on disk that are not in SQL yet."""
    lag_s: float = 0.0
    """Age of the oldest usage on disk that is not in SQL yet."""
    away: str = ""
    """Why SQL cannot be reached; empty while it can."""
    lost: int = 0
    """Booked events of requests whose worker died during the request."""
    crowded: int = 0
    """Events whose end user is beyond the bound on a tenant's labels a day."""


class Ships(Protocol):
    """The shipper of usage events to SQL, as this module needs it."""

    away: str
    waiting_bytes: int
    lag_s: float

    @property
    def counts(self) -> Any:
        """The counts booked, repeated, refused, damaged, lost and crowded."""
        ...

    async def run(self) -> None:
        """Ship until cancelled."""
        ...

    async def close(self, within_s: float) -> bool:
        """Ship the events that are left; False when some stay on disk."""
        ...


class Bookkeeper:
    """Runs the shipper, the retention and the sums of blocks; one per host.

    Args:
        close: closes the connections to SQL.
    """

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
        """Start all of them; they run until `close`."""
        self._tasks = [
            asyncio.create_task(kept_up(self._shipper.run, "ledger")),
            asyncio.create_task(kept_up(self._keep_on, "retention")),
            asyncio.create_task(kept_up(self._sum_up_on, "guard blocks")),
        ]

    def state(self) -> BookingState:
        """The state and counts, for metrics."""
        ships = self._shipper
        counts = ships.counts
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
        """Ship the last events, if SQL is there, and close its connections; called when every worker has ended."""
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

    async def _sum_up_on(self) -> None:
        while True:
            await asyncio.sleep(SUM_UP_EVERY_S)
            await self.sum_up()

    async def sum_up(self) -> None:
        """Sum up the blocks by guard rules of the minutes that are over once; during an outage of SQL the next call tries again."""
        try:
            await self._store.sum_up_blocks(self._wall())
        except LedgerAway as error:
            log.warning("blocks by guard rules are summed up later", why=str(error)[:300])

    async def keep(self) -> None:
        """Prepare the coming days and drop days beyond the retention once; during an outage of SQL the next call tries again."""
        today = dt.datetime.fromtimestamp(self._wall(), dt.UTC).date()
        try:
            await self._store.prepare(today)
            dropped = await self._store.prune(today - dt.timedelta(days=self._retention_days))
        except LedgerAway as error:
            log.warning("retention has to wait", why=str(error)[:300])
            return
        if dropped:
            log.info("old usage dropped", dropped=dropped, kept_days=self._retention_days)
