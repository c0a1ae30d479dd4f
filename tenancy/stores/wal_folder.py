"""The folder of the write-ahead logs and its locks: one directory per writing process, one process that ships for the whole host.

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
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

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


class Part(msgspec.Struct, frozen=True):
    """One process's directory as the shipper finds it."""

    path: Path
    segments: tuple[Path, ...]
    """Segments that no process writes to, oldest first."""
    left: bool
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


def parts(folder: Path) -> list[Part]:
    """Every process's directory; for the process that ships. Raises OSError."""
    directories = []
    with _guard(folder):
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                lock = locked(path / "lock")
                if lock is not None:
                    os.close(lock)
                names = [*path.glob("*" + SEALED), *(path.glob("*" + OPEN) if lock is not None else ())]
                directories.append(Part(path, tuple(sorted(names)), lock is not None))
    return directories


def remove(folder: Path, part: Part) -> None:
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
