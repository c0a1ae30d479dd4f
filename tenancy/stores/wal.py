"""The write-ahead log of usage events: `append` costs the request path a queue entry, a thread of its own makes it durable.

An event in the `Wal` waits at most `fsync_s` for others, is written and synced with them, and its segment is sealed after `SEGMENT_S` or at
`SEGMENT_BYTES`; `stores.shipper`, in another process, books sealed segments in SQL and removes them. A process that is killed loses
the events of the last `fsync_s`, and nothing else.

When the disk is full, broken or at `max_bytes`, the events on it are kept; new ones wait in memory up to `room`, then they are dropped
and counted. `full` is true from the first failure on.

The folder has one directory per writing process (`Claim`), and one process that ships for the whole host (`WalDirectory` is what it reads):

    FOLDER/.guard                      held for a moment while a directory is made, looked at or removed
    FOLDER/.shipper                    held by the process that ships, for as long as it lives
    FOLDER/PID-TOKEN/lock              held by the process that writes there, for as long as it lives
    FOLDER/PID-TOKEN/00000001.open     the segment that is written to
    FOLDER/PID-TOKEN/00000002.wal      sealed segments: no process writes to them any more
    FOLDER/PID-TOKEN/under-way         requests that have no row yet (`stores.under_way`)

The kernel releases a lock with its process. A directory whose lock is free was left by a dead process: its open segment is as good as
sealed. Names are never used again, so no other process comes to write there. The folder must be on a file system with working `flock`:
a local disk, or a volume of this host.
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from domain.clock import Clock
from tenancy.usage import UsageEvent
from tenancy.wal_frames import frame

SEALED: Final = ".wal"
OPEN: Final = ".open"
UNDER_WAY: Final = "under-way"
UNDER_WAY_NEW: Final = "under-way.new"
"""The next version of that file, until it replaces the file."""


class Claim:
    """A process's own directory, and the lock that says it lives."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def sealed(self) -> list[Path]:
        """Segments that wait to be shipped, oldest first."""
        return sorted(self.path.glob("*" + SEALED))

    def release(self) -> None:
        """Release the lock: what is in the directory now is left to the shipper. Safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class WalDirectory(msgspec.Struct, frozen=True):
    """One process's directory as the shipper finds it."""

    path: Path
    segments: tuple[Path, ...]
    """Segments that no process writes to, oldest first."""
    is_dead: bool
    """Whether its process is dead; the directory is then removed after its segments."""


def claim_new(folder: Path, name: str) -> Claim:
    """Make a directory for this process, readable by its owner only, durable before anything is in it.

    Raises:
        OSError: the directory cannot be made, or is there already.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _guard(folder):
        path = folder / name
        path.mkdir(mode=0o700)
        lock = locked(path / "lock")
        assert lock is not None, "nobody else is in it: the guard is ours"
    sync_directory(folder)
    return Claim(path, lock)


def wal_directories(folder: Path) -> list[WalDirectory]:
    """Every process's directory; for the process that ships. Raises OSError."""
    directories = []
    with _guard(folder):
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                lock = locked(path / "lock")
                if lock is not None:
                    os.close(lock)
                names = [*path.glob("*" + SEALED), *(path.glob("*" + OPEN) if lock is not None else ())]
                directories.append(WalDirectory(path, tuple(sorted(names)), lock is not None))
    return directories


def changed_ns(directories: Sequence[Path]) -> tuple[int, ...]:
    """When files last came into each directory or left it, in nanoseconds since the epoch; nothing where one of them is gone."""
    try:
        return tuple(path.stat().st_mtime_ns for path in directories)
    except OSError:
        return ()


def remove(folder: Path, part: WalDirectory) -> None:
    """Remove the directory of a dead process; everything in it must have been booked. Raises OSError."""
    with _guard(folder):
        for name in (UNDER_WAY, UNDER_WAY_NEW, "lock"):
            (part.path / name).unlink(missing_ok=True)
        part.path.rmdir()


def locked(path: Path) -> int | None:
    """A file handle that holds the lock, or None when another process holds it. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def size_and_oldest(segments: Iterable[Path]) -> tuple[int, float | None]:
    """Bytes of these segments together, and when the oldest was last written (seconds since the epoch; None when there are none)."""
    stats = []
    for path in segments:
        with contextlib.suppress(OSError):  # shipped and removed in between
            stat = path.stat()
            stats.append((stat.st_size, stat.st_mtime))
    return sum(size for size, _ in stats), min((at for _, at in stats), default=None)


def all_segments(folder: Path) -> Iterator[Path]:
    """The segments of every process, open ones included."""
    return folder.glob("*/[0-9]*.*")


def sync_directory(path: Path) -> None:
    """Make the names of files in a directory durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def segment_path(directory: Path, number: int, suffix: str = OPEN) -> Path:
    """The path of a segment."""
    return directory / f"{number:08d}{suffix}"


@contextlib.contextmanager
def _guard(folder: Path) -> Iterator[None]:
    handle = os.open(folder / ".guard", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""About 16,000 events; what a shipper holds in memory at a time."""
SEGMENT_S: Final = 1.0
"""Age at which a segment is sealed: the longest an event waits for the shipper."""
BACKLOG_SEGMENTS: Final = 64
"""Sealed segments from which on a segment is sealed at the age of BACKLOG_S instead: a day without SQL would else leave 86,400 files."""
BACKLOG_S: Final = 60.0
"""Age at which a segment is sealed while many wait for the shipper."""
ROOM: Final = 50_000
"""Events that wait in memory while the disk takes none: about 40 MB."""
BATCH: Final = 4096
"""Events written and synced together at most."""
RETRY_S: Final = 0.5
"""Interval at which a disk that took nothing is tried again."""

log = structlog.get_logger("tidegate.ledger")


class Wal:
    """The usage log of one process (`tenancy.ports.UsageLog`). `append` and `close` belong to one thread; every number may be read from
    any thread.

    Args:
        folder: where all processes of this host have their directories.
        name: name of this process's directory; never used before.
        fsync_s: how long an event may wait to be durable.
        max_bytes: size of the segments of all processes in the folder; may be exceeded by one segment per process.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        clock: Clock,
        *,
        fsync_s: float = 0.05,
        max_bytes: int = 1024**3,
        room: int = ROOM,
        segment_bytes: int = SEGMENT_BYTES,
        segment_s: float = SEGMENT_S,
    ) -> None:
        self.folder = folder
        self.claim: Claim = claim_new(folder, name)
        self.dropped = 0
        """Events that were not kept, for want of room; only the appending thread writes this number."""
        self.written = 0
        """Events that are durable; only the writing thread writes this number."""
        self.full = False
        """Whether the disk takes nothing now."""
        self._clock = clock
        self._fsync_s = fsync_s
        self._max_bytes = max_bytes
        self._room = room
        self._segment_bytes = segment_bytes
        self._segment_s = segment_s
        self._pending: deque[UsageEvent] = deque()
        self._unwritten: list[bytes] = []
        self._number = 1
        """Number of the segment that is open, or would be next."""
        self._file = -1
        self._size = 0
        self._opened_at = 0.0
        self._sync_took_s = 0.0
        self._awake = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._thread.start()

    def append(self, event: UsageEvent) -> None:
        if len(self._pending) >= self._room or self._closing.is_set():
            self.dropped += 1
            if self.dropped == 1:
                log.error("usage events are being dropped: the write-ahead log takes no more", folder=str(self.folder))
            return
        self._pending.append(event)
        if not self._awake:
            self._awake = True
            self._wake.set()

    @property
    def waiting(self) -> int:
        """Events in memory, not durable yet."""
        return len(self._pending) + len(self._unwritten)

    def close(self, timeout_s: float = 5.0) -> None:
        """Make everything durable and leave it to the shipper; blocks for at most `timeout_s`. Events that come later are dropped and
        counted."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        if lost := self.waiting:
            self.dropped += lost
            log.error("usage events are lost: the disk takes none", folder=str(self.folder), events=lost)
        self.claim.release()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._until_due_s())
            self._wake.clear()
            closing = self._closing.is_set()
            if self.full:
                self._closing.wait(RETRY_S)
            elif self._pending:
                self._closing.wait(max(self._fsync_s - self._sync_took_s, 0.001))  # for more events in the same sync
            self._awake = False  # before the queue is read: an event that comes later wakes this thread again
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - whatever it is, the only writer must go on
                self._failed(error)
            if closing:
                with contextlib.suppress(OSError):
                    self._seal()
                return

    def _until_due_s(self) -> float | None:
        if self.full:
            return 0.0
        if self._file < 0:
            return None
        return max(self._opened_at + self._lasts_s() - self._clock(), 0.0)

    def _lasts_s(self) -> float:
        return self._segment_s if self._number < BACKLOG_SEGMENTS or len(self.claim.sealed()) < BACKLOG_SEGMENTS else BACKLOG_S

    def _round(self) -> None:
        """Write all events that wait, until the disk refuses."""
        while self._unwritten or self._pending:
            if not self._unwritten:
                self._unwritten = [frame(self._pending.popleft()) for _ in range(min(len(self._pending), BATCH))]
            self._write(b"".join(self._unwritten))
            self.written += len(self._unwritten)
            self._unwritten = []
            if self._size >= self._segment_bytes:
                self._seal()
        if self.full:
            self._look_for_space()
            self._recovered()
        if self._file >= 0 and self._clock() - self._opened_at >= self._lasts_s():
            self._seal()

    def _write(self, data: bytes) -> None:
        if self._file < 0:
            self._open()
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        begun = self._clock()
        os.fdatasync(self._file)
        self._sync_took_s = self._clock() - begun
        self._size += len(data)
        self._recovered()

    def _open(self) -> None:
        self._look_for_space()
        path = segment_path(self.claim.path, self._number)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._size = 0
        self._opened_at = self._clock()
        sync_directory(self.claim.path)

    def _look_for_space(self) -> None:
        """Raise OSError when there is no room for another segment."""
        if (waiting := size_and_oldest(all_segments(self.folder))[0]) >= self._max_bytes:
            raise OSError(errno.EDQUOT, f"{waiting} bytes wait for SQL; ledger.max_bytes is {self._max_bytes}")
        disk = os.statvfs(self.folder)
        if self.full and disk.f_bavail * disk.f_frsize < self._segment_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _recovered(self) -> None:
        if self.full:
            self.full = False
            log.info("the write-ahead log takes events again", folder=str(self.folder))

    def _seal(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            number, self._number = self._number, self._number + 1
            os.close(file)
            segment_path(self.claim.path, number).rename(segment_path(self.claim.path, number, SEALED))

    def _failed(self, error: Exception) -> None:
        """Write the last events again: after a failed sync it is unknown what the disk has. They are cut off the segment if possible, and
        written to a new one; an event that is there twice is booked once."""
        if not self.full:
            log.error("the write-ahead log takes no events", folder=str(self.folder), error=str(error)[:200], waiting=self.waiting)
        self.full = True
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            with contextlib.suppress(OSError):
                self._seal()
