"""Change marks of files: they differ when the content of a file differs, without reading it."""

from collections.abc import Iterable
from pathlib import Path

Mark = tuple[int, int, int]
"""A file's modification time in nanoseconds, its size in bytes, and its inode."""


def mark_of(file: Path) -> Mark:
    """The mark of a file as it is now; zeros when it does not exist. Raises OSError."""
    try:
        status = file.stat()
    except FileNotFoundError:  # a dangling link: reading the file reports it
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino


def marks_of(files: Iterable[Path]) -> tuple[Mark, ...]:
    """The marks of files as they are now; zeros for one that cannot be looked at, because reading it reports that."""
    marks = []
    for file in files:
        try:
            marks.append(mark_of(file))
        except OSError:
            marks.append((0, 0, 0))
    return tuple(marks)


def visible_files(folder: Path) -> list[Path]:
    """The files of a folder, sorted, without names that begin with a dot, which editors write. Raises OSError."""
    return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
