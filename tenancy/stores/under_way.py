"""Requests under way, on disk beside the write-ahead log, so that what a killed process had delivered is billed.

`open` and `close` cost the request path a dictionary entry each. A thread of its own writes every request that is open as the row
it would be if the process ended now: new ones `SOON_S` after they were opened, and all of them together every `every_s`, into one
file that takes the place of the last. A process that ends in order leaves nothing under way. What a dead one left is booked by
`stores.shipper`, after the rows of that process: a request that has a row keeps it.

    killed          lost is what was delivered since the last writing
    power is lost   the same since the last writing that was synced; what is written soon after opening is not
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import structlog

from domain.clock import Clock
from tenancy.stores.wal_folder import UNDER_WAY, UNDER_WAY_NEW, sync_directory
from tenancy.usage_event import UsageEvent
from tenancy.wal_frames import Damage, frame, read_frames

EVERY_S: Final = 0.25
"""Between writings of everything that is open, while that is little."""
AT_MOST_EVERY_S: Final = 5.0
"""The longest time between them, however many are open."""
CALM: Final = 100
"""A writing is followed by at least this many times the CPU time it took: it takes one core's hundredth at most."""
SYNC_CALM: Final = 10
"""The same for the disk, which the rows need more."""
SOON_S: Final = 0.05
TOGETHER: Final = 32
"""Rows made in one go; the thread that serves comes in between."""
NEW_AT_MOST: Final = 50_000
"""Opened and not written yet, while the disk stands still; what falls out is written with all the others."""

log = structlog.get_logger("tidegate.ledger")


class Unfinished(Protocol):
    """A request under way."""

    def lost(self) -> UsageEvent:
        """Its row if the process ended now; called from another thread than the one that serves it."""
        ...


class UnderWay:
    """One per process, in the directory of its write-ahead log. `open` and `close` belong to one thread.

    Args:
        cpu: CPU seconds of the thread that asks.
    """

    def __init__(self, directory: Path, clock: Clock, *, every_s: float = EVERY_S, cpu: Clock = time.thread_time) -> None:
        self._directory, self._clock, self._every_s, self._cpu = directory, clock, every_s, cpu
        self._open: dict[str, Unfinished] = {}
        """Bounded by the requests there may be at once."""
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

    def open(self, request_id: str, one: Unfinished) -> None:
        """A request was admitted. Never waits and never raises."""
        self._open[request_id] = one
        self._new.append(request_id)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def close(self, request_id: str) -> None:
        """Its row was given to the write-ahead log."""
        self._open.pop(request_id, None)

    def end(self, timeout_s: float = 2.0) -> None:
        """Nothing more is opened; before the write-ahead log lets its directory go. Blocks for at most `timeout_s`."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            idle = self._empty and not self._open
            self._wake.wait(None if idle else max(self._next_at - self._clock(), 0.0))
            self._wake.clear()
            if self._new:
                self._closing.wait(SOON_S)  # company
            self._awake = False  # before the look: who comes later wakes us again
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
            data = b"".join(_frames([one for one in known if one is not None]))
            self._empty = self._empty and not data
            _write(self._file, data)

    def _write_all(self) -> None:
        begun = self._cpu()
        self._new.clear()  # before the look: they are open already
        data = b"".join(_frames(list(self._open.values())))
        if not data and self._empty:
            return
        worked, synced_from = self._cpu() - begun, self._clock()
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
    """What a process that is no more had under way, each request once, and what cannot be read of it. Raises OSError."""
    try:
        data = (directory / UNDER_WAY).read_bytes()
    except FileNotFoundError:
        return []
    found = list(read_frames(data))
    last = {one.request_id: one for one in found if isinstance(one, UsageEvent)}
    return [*last.values(), *(one for one in found if isinstance(one, Damage))]


def _frames(some: list[Unfinished]) -> Iterator[bytes]:
    for n, one in enumerate(some, 1):
        yield frame(one.lost())
        if not n % TOGETHER:
            time.sleep(0)  # noqa: TID251 - gives way, in a thread of its own


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
