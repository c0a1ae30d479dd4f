"""Books the sealed segments of every process's write-ahead log in SQL, and removes what is booked.

One process per folder ships, and not one that serves: booking a request costs more CPU than relaying it. A segment is removed only when
all of its events are committed. After a crash in between some events are sent again, and the store books each id once, so every event
that was ever durable is booked exactly once. While SQL is away nothing is removed; the log grows up to its bound.

The requests that a dead process had under way are booked after all its segments: a request that has a row by then keeps it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from domain.clock import WallClock
from tenancy.stores.under_way import left_under_way
from tenancy.stores.wal import UNDER_WAY, changed_ns, locked, remove, size_and_oldest, wal_directories
from tenancy.usage import LedgerAway, RowsRefused, UsageEvent, UsageStore
from tenancy.wal_frames import Damage, read_frames

BATCH: Final = 4096
"""Events per transaction at most. A transaction costs some milliseconds besides its rows, and holds the database's write lock for a few
tenths of a second."""
TOGETHER_BYTES: Final = 1024 * 1024
"""Size of the segments, of all workers, that are booked together, unless a single one is larger: about 4,000 events."""
EVERY_S: Final = 0.25
"""Between looks at the folder: segments are sealed every second."""
UNCHANGED_LOOKS: Final = 3
"""Looks at times of change only, between two that look into the directories: a process that ended changes no file. One of these takes a
thread and a quarter of a millisecond, which at rest was the largest part of what the process takes."""
WRITE_WITHIN_S: Final = 30.0
"""Longest wait for one batch; a database that is silent for longer counts as away."""

Sleep = Callable[[float], Awaitable[None]]

log = structlog.get_logger("tidegate.ledger")


class ShipCounts(msgspec.Struct):
    """Numbers of events shipped so far by this process, by result."""

    booked: int = 0
    repeated: int = 0
    refused: int = 0
    """Events refused by the database for good, or of days that the retention has dropped; each is in the log."""
    damaged: int = 0
    """Places in segments that could not be read; each is in the log."""
    lost: int = 0
    """Requests, among those booked, that were under way when their process died."""
    crowded: int = 0
    """Events whose end user is beyond the bound on a tenant's labels a day."""


class LedgerShipper:
    """Ships the write-ahead logs of one folder. A lock lets one process per folder ship; others wait until it ends."""

    def __init__(self, folder: Path, store: UsageStore, wall: WallClock, *, every_s: float = EVERY_S, sleep: Sleep = asyncio.sleep) -> None:
        self.counts = ShipCounts()
        self.away = ""
        """Why SQL cannot be reached; empty while it can."""
        self.waiting_bytes = 0
        """Size of the sealed segments."""
        self.lag_s = 0.0
        """Age of the oldest sealed segment."""
        self._folder = folder
        self._store = store
        self._wall = wall
        self._every_s = every_s
        self._sleep = sleep
        self._directories: tuple[Path, ...] = ()
        """The folder, and those of processes in it, as the last pass found them."""
        self._unchanged: tuple[int, ...] | None = None
        """When they had changed last, before the last pass; None where that pass found anything."""
        self._looks = 0
        """Looks since the last pass."""
        self._lock: int | None = None
        self._shipping = asyncio.Lock()

    async def run(self) -> None:
        """Ship until cancelled. A pass that is under way is not cancelled, so that no connection is left in the middle of a transaction;
        `close` waits for it."""
        while True:
            if self._is_due():
                await asyncio.shield(asyncio.ensure_future(self.ship()))
            await self._sleep(self._every_s)

    def _is_due(self) -> bool:
        """Whether there may be something to ship."""
        self._looks += 1
        return self._unchanged is None or self._looks > UNCHANGED_LOOKS or changed_ns(self._directories) != self._unchanged

    async def ship(self) -> bool:
        """Book everything that is sealed. Returns whether nothing is left; never raises."""
        async with self._shipping:
            try:
                return await self._ship()
            except Exception as error:  # noqa: BLE001 - a full disk, a driver's own error: what is not shipped stays and is tried again
                if not self.away:
                    log.error("usage events cannot be booked; they wait on disk", why=str(error)[:300], bytes=self.waiting_bytes)
                self.away = f"{type(error).__name__}: {error}"
                return False

    async def close(self, within_s: float = 5.0) -> bool:
        """Ship what is left, for at most `within_s`, and release the lock, so that another process can ship the rest. Returns whether
        nothing is left."""
        try:
            async with asyncio.timeout(within_s):
                shipped = await self.ship()
        except TimeoutError:
            shipped = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        return shipped

    async def _ship(self) -> bool:
        if self._lock is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = locked(self._folder / ".shipper")
            if self._lock is None:
                return False  # another process ships
        changed, self._unchanged, self._looks = changed_ns(self._directories), None, 0
        directories = await asyncio.to_thread(wal_directories, self._folder)
        before, self._directories = self._directories, (self._folder, *(part.path for part in directories))
        if self._directories == before and not any(part.segments or part.is_dead for part in directories):
            self._unchanged = changed
        left = [segment for part in directories for segment in part.segments]
        for segments in await asyncio.to_thread(_together, left) if left else ():
            await self._measure(left)
            await self._ship_segments(segments)
            left = [segment for segment in left if segment not in segments]
        for part in directories:
            if part.is_dead:
                await self._ship_under_way(part.path)
                await asyncio.to_thread(remove, self._folder, part)
        await self._measure(left)
        if self.away:
            log.info("the ledger's database can be reached again")
            self.away = ""
        return True

    async def _measure(self, segments: list[Path]) -> None:
        if not segments:  # nearly always at rest, four times a second: no thread is asked
            self.waiting_bytes, self.lag_s = 0, 0.0
            return
        self.waiting_bytes, oldest = await asyncio.to_thread(size_and_oldest, segments)
        self.lag_s = 0.0 if oldest is None else max(self._wall() - oldest, 0.0)

    async def _ship_segments(self, segments: list[Path]) -> None:
        events: list[UsageEvent] = []
        for segment in segments:
            events += self._good(await asyncio.to_thread(_frames_of, segment), segment)
        await self._ship_events(events)
        for segment in segments:
            await asyncio.to_thread(segment.unlink)

    async def _ship_under_way(self, directory: Path) -> None:
        events = self._good(await asyncio.to_thread(left_under_way, directory), directory / UNDER_WAY)
        before = self.counts.booked
        await self._ship_events(events)
        if lost := self.counts.booked - before:
            self.counts.lost += lost
            log.warning("a worker ended with requests under way; they are booked as far as they came", requests=lost)

    async def _ship_events(self, events: list[UsageEvent]) -> None:
        for start in range(0, len(events), BATCH):
            await self._write(events[start : start + BATCH])

    def _good(self, frames: Iterable[UsageEvent | Damage], file: Path) -> list[UsageEvent]:
        events = []
        for frame in frames:
            if isinstance(frame, Damage):
                self.counts.damaged += 1
                log.error("usage events cannot be read", segment=str(file), offset=frame.offset, bytes=frame.size, why=frame.why)
            else:
                events.append(frame)
        return events

    async def _write(self, events: list[UsageEvent]) -> None:
        try:
            async with asyncio.timeout(WRITE_WITHIN_S):
                written = await self._store.write(events)
        except TimeoutError:
            raise LedgerAway(f"no answer within {WRITE_WITHIN_S:g} s") from None
        except RowsRefused as error:
            if len(events) == 1:
                self.counts.refused += 1
                log.error("a usage event is refused by the database", why=str(error)[:500], row=msgspec.json.encode(events[0]).decode())
                return
            middle = len(events) // 2
            await self._write(events[:middle])
            await self._write(events[middle:])
            return
        self.counts.booked += written.booked
        self.counts.repeated += written.repeated
        self.counts.refused += written.expired
        self.counts.crowded += written.crowded
        if written.expired:
            log.error("usage events are older than the retention and not booked", events=written.expired, first=events[0].request_id)


def _together(segments: Sequence[Path]) -> list[list[Path]]:
    """The segments in order, small ones in one list. Raises OSError."""
    lists: list[list[Path]] = []
    size = 0
    for segment in segments:
        size += segment.stat().st_size
        if not lists or size > TOGETHER_BYTES:
            lists.append([])
            size = segment.stat().st_size
        lists[-1].append(segment)
    return lists


def _frames_of(segment: Path) -> list[UsageEvent | Damage]:
    return list(read_frames(segment.read_bytes()))
