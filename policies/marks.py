"""What tells one content of a folder's file from another, without reading it."""

from pathlib import Path

Mark = tuple[int, int, int]
"""When a file was written, its size, which file it is."""


def mark_of(file: Path) -> Mark:
    """Of a file as it is now."""
    try:
        found = file.stat()
    except FileNotFoundError:  # a link that leads nowhere: reading it says so
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def visible_files(folder: Path) -> list[Path]:
    """What is in a folder, in order, without names that begin with a dot, as editors write them. Raises OSError."""
    return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
