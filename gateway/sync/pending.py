"""A file of orders that the database could not take: in force on this gateway at once, and written to the database when it is there again.

Orders in a file outlive a restart of the gateway during the outage. `gateway.sync.revocations` keeps revoked keys in one, and
`gateway.rollouts.aborts` rollouts that an operator ended.
"""

import os
import threading
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog

log = structlog.get_logger("tidegate.directory")

Entry = TypeVar("Entry", bound=msgspec.Struct)


class PendingFile(Generic[Entry]):
    """The entries of one file, which its owner alone can read. One process writes it, from any of its threads.

    Args:
        path: the file; it exists only while there are entries.
        kind: the type of the entries together.
        noun: what the entries are, for the log.
    """

    def __init__(self, path: Path, kind: type[tuple[Entry, ...]], noun: str) -> None:
        self._path = path
        self._kind = kind
        self._noun = noun
        self.changing = threading.Lock()
        """Held from the read of the entries until their replacement is written."""
        self._mark: tuple[int, int] | None = None
        self._entries: tuple[Entry, ...] = ()

    def entries(self) -> tuple[Entry, ...]:
        """The entries, read again only when the file has changed. A file that cannot be read counts as unchanged, and is logged."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._mark, self._entries = None, ()
            return ()
        except OSError as error:
            log.error(f"{self._noun} cannot be read", file=str(self._path), reason=error.strerror)
            return self._entries
        mark = (stat.st_mtime_ns, stat.st_ino)
        if mark != self._mark:
            try:
                self._entries = msgspec.json.decode(self._path.read_bytes(), type=self._kind)
                self._mark = mark  # a file that could not be read is read again
            except (OSError, msgspec.DecodeError) as error:
                log.error(f"{self._noun} cannot be read", file=str(self._path), reason=str(error)[:200])
        return self._entries

    def is_unchanged(self) -> bool:
        """Whether `entries` would read nothing. One call of the system, so that a file that nearly never is there needs no thread."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return not self._entries
        except OSError:
            return False
        return (stat.st_mtime_ns, stat.st_ino) == self._mark

    def exchange(self, entry: Entry, new: Entry | None) -> None:
        """Put another entry in the place of one, or drop it. Raises OSError."""
        with self.changing:
            others = (new if known == entry else known for known in self.entries())
            self.replace(tuple(known for known in others if known is not None))

    def replace(self, entries: tuple[Entry, ...]) -> None:
        """Write the file anew, completely or not at all; no entry, no file. Raises OSError."""
        if not entries:
            self._path.unlink(missing_ok=True)
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(msgspec.json.encode(entries))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
