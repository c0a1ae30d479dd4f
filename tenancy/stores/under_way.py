"""Requests in flight, on disk beside the write-ahead log, so that what a killed process had delivered is billed.

`open` and `close` of `InFlightLog` cost the request path a dictionary entry each. A thread of its own writes every open request as the row
that would be booked if the process ended now: new requests `SOON_S` after they were opened, and all of them together every `every_s`, into
a file that replaces the last one. A process that ends in order leaves no request there. The file of a dead process is booked by
`stores.shipper`, after the segments of that process: a request that has a row keeps it.

    killed          what was delivered since the last writing is lost
    power is lost   the same since the last writing that was synced; the writing soon after opening is not synced

`UnbookedUsage` reads the usage of this host that SQL may not have yet from the folder of the write-ahead logs.
"""

import asyncio
import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import structlog

from domain.clock import Clock, WallClock
from tenancy.stores.wal import SEALED, UNDER_WAY, UNDER_WAY_NEW, all_segments, size_and_oldest, sync_directory, wal_directories
from tenancy.usage import UsageEvent
from tenancy.wal_frames import Damage, frame, read_frames

EVERY_S: Final = 0.25
"""Between writings of all open requests, while these are few."""
AT_MOST_EVERY_S: Final = 5.0
"""The longest time between writings of all open requests, however many are open."""
CALM: Final = 100
"""A writing is followed by a pause of at least this many times the CPU time it took: it takes a hundredth of one core at most."""
SYNC_CALM: Final = 10
"""A writing is followed by a pause of at least this many times the time that the disk took: the usage log needs the disk more."""
SOON_S: Final = 0.05
"""How long a new request waits for others to be written with it."""
TOGETHER: Final = 32
"""Rows made at a time; the thread that serves runs in between."""
NEW_AT_MOST: Final = 50_000
"""Requests opened and not written yet, while the disk does not answer; requests beyond it are written with all the others."""

log = structlog.get_logger("tidegate.ledger")


class Unfinished(Protocol):
    """A request under way."""

    def lost(self) -> UsageEvent:
        """The request's row if the process ended now; called from another thread than the one that serves it."""
        ...


class InFlightLog:
    """Keeps the open requests of one process on disk, in the directory of its write-ahead log. `open` and `close` belong to one thread.

    Args:
        cpu: CPU seconds of the calling thread.
    """

    def __init__(self, directory: Path, clock: Clock, *, every_s: float = EVERY_S, cpu: Clock = time.thread_time) -> None:
        self._directory = directory
        self._clock = clock
        self._every_s = every_s
        self._cpu = cpu
        self._open: dict[str, Unfinished] = {}
        """Open requests by id: bounded by the requests that there may be at once."""
        self._new: deque[str] = deque(maxlen=NEW_AT_MOST)
        self._file = -1
        self._empty = True
        """Whether the file on disk says that nothing is under way."""
        self._failing = False
        self._next_at = 0.0
        self._awake = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="under-way", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, request: Unfinished) -> None:
        """Take a request that was admitted. Never waits and never raises."""
        self._open[request_id] = request
        self._new.append(request_id)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def close(self, request_id: str) -> None:
        """Forget a request: its row was given to the write-ahead log."""
        self._open.pop(request_id, None)

    def end(self, timeout_s: float = 2.0) -> None:
        """Write for the last time and stop. To be called after the last `open`, and before the write-ahead log releases its directory.
        Blocks for at most `timeout_s`."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            idle = self._empty and not self._open
            self._wake.wait(None if idle else max(self._next_at - self._clock(), 0.0))
            self._wake.clear()
            if self._new:
                self._closing.wait(SOON_S)  # for more requests to write together
            self._awake = False  # before the queue is read: a request that comes later wakes this thread again
            self._try(self._round)
        self._try(self._finish)
        if self._file >= 0:
            os.close(self._file)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._failing = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the only writer must go on
            if not self._failing:
                log.error("requests under way cannot be written down", folder=str(self._directory), error=str(error)[:200])
            self._failing = True
            self._next_at = self._clock() + AT_MOST_EVERY_S

    def _round(self) -> None:
        if self._clock() >= self._next_at:
            self._write_all()
        elif self._file >= 0 and self._new:
            known = (self._open.get(self._new.popleft()) for _ in range(len(self._new)))
            data = b"".join(_frames([request for request in known if request is not None]))
            self._empty = self._empty and not data
            _write(self._file, data)

    def _write_all(self) -> None:
        begun = self._cpu()
        self._new.clear()  # before the open requests are read: they include the new ones
        data = b"".join(_frames(list(self._open.values())))
        if not data and self._empty:
            return
        worked = self._cpu() - begun
        synced_from = self._clock()
        self._replace(data)
        now = self._clock()
        pause_s = max(self._every_s, CALM * worked, SYNC_CALM * (now - synced_from))
        self._next_at = now + min(pause_s, max(AT_MOST_EVERY_S, self._every_s))

    def _replace(self, data: bytes) -> None:
        new = os.open(self._directory / UNDER_WAY_NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write(new, data)
            os.fdatasync(new)
            (self._directory / UNDER_WAY_NEW).rename(self._directory / UNDER_WAY)
        except OSError:
            os.close(new)
            raise
        old, self._file = self._file, new
        self._empty = not data
        if old >= 0:
            os.close(old)
        sync_directory(self._directory)

    def _finish(self) -> None:
        self._write_all()
        if self._empty:
            with contextlib.suppress(FileNotFoundError):
                (self._directory / UNDER_WAY).unlink()


def left_under_way(directory: Path) -> list[UsageEvent | Damage]:
    """The requests that a dead process had under way, each once, and the damage in its file. Raises OSError."""
    try:
        data = (directory / UNDER_WAY).read_bytes()
    except FileNotFoundError:
        return []
    frames = list(read_frames(data))
    last = {event.request_id: event for event in frames if isinstance(event, UsageEvent)}
    return [*last.values(), *(damage for damage in frames if isinstance(damage, Damage))]


def _frames(requests: list[Unfinished]) -> Iterator[bytes]:
    for n, request in enumerate(requests, 1):
        yield frame(request.lost())
        if not n % TOGETHER:
            time.sleep(0)  # noqa: TID251 - gives way, in a thread of its own


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


READ_BYTES: Final = 64 * 1024 * 1024
"""About 250,000 requests."""

reconcile_log = structlog.get_logger("tidegate.reconcile")


class UnbookedUsage:
    """Usage that waits in the write-ahead logs (`gateway.ledger.reconcile.UnbookedHere`).

    Args:
        full: whether this process's own log finds no room on disk.
    """

    def __init__(self, folder: Path, full: Callable[[], bool], wall: WallClock) -> None:
        self._folder = folder
        self._full = full
        self._wall = wall

    async def events(self) -> list[UsageEvent]:
        """The events in all segments, those of ended processes and those that are written to now; booked or not. At most `READ_BYTES`
        are read, the oldest first. The requests that dead processes had under way come before them: a later event of the same request
        replaces such a request."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[UsageEvent]:
        events = self._lost()
        left = READ_BYTES
        for path in sorted(all_segments(self._folder), key=lambda path: path.name):
            data = b""
            for name in (path, path.with_suffix(SEALED)):  # the segment may be sealed, or booked and removed, meanwhile
                with contextlib.suppress(OSError):
                    data = name.read_bytes()
                    break
            events += (event for event in read_frames(data) if isinstance(event, UsageEvent))
            left -= len(data)
            if left < 0:
                reconcile_log.warning(
                    "more usage waits for the ledger than can be counted at once; limits count the rest when it is booked"
                )
                break
        return events

    def _lost(self) -> list[UsageEvent]:
        events: list[UsageEvent] = []
        with contextlib.suppress(OSError):  # booked and removed meanwhile
            for part in wal_directories(self._folder):
                if part.is_dead:
                    events += (event for event in left_under_way(part.path) if isinstance(event, UsageEvent))
        return events

    async def oldest_s(self) -> float:
        """Seconds since the oldest segment was last written to; infinite while the disk is full, because events then wait in memory."""
        if self._full():
            return math.inf
        _, oldest = await asyncio.to_thread(lambda: size_and_oldest(all_segments(self._folder)))
        return 0.0 if oldest is None else max(self._wall() - oldest, 0.0)
