"""Gauges of stored files and batches. They are counted in the database, for all tenants and gateways on it together, and their labels are
states alone.

`FigureWatch` reads them in the admin process. They are left out while the database is away, so that nobody takes old ones for new.
"""

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol, get_args

import structlog

from domain.batches import BatchStatus
from domain.clock import WallClock
from domain.files import FileFigures, FileStatus, StoresAway

EVERY_S: Final = 15.0
"""Seconds between two readings: about the usual time between two scrapes."""

FILE_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_files": ("Files in the database.", ("status",)),
    "tidegate_file_bytes": ("Their bytes; of files that are on their way, what is reserved for them.", ("status",)),
    "tidegate_batches": ("Batches in the database.", ("status",)),
    "tidegate_batch_oldest_line_seconds": ("Age of the oldest batch with lines that may have no result yet; 0 without one.", ()),
}
FILE_STATES: Final[tuple[str, ...]] = get_args(FileStatus)
BATCH_STATES: Final[tuple[str, ...]] = get_args(BatchStatus)

log = structlog.get_logger("tidegate.files")

Rows = list[tuple[tuple[str, ...], float]]


class FileCounts(Protocol):
    """The database of files and batches."""

    async def figures(self) -> FileFigures:
        """Count both. Raises StoresAway."""
        ...


class FigureWatch:
    """Reads the figures again and again."""

    def __init__(self, counts: FileCounts, wall: WallClock) -> None:
        self._counts = counts
        self._wall = wall
        self.figures: FileFigures | None = None
        """The last figures; None before the first ones, and while the database is away."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Read once."""
        try:
            self.figures = await self._counts.figures()
        except StoresAway as error:
            if self.figures is not None:
                log.warning("files and batches could not be counted", reason=str(error))
            self.figures = None

    def rows(self) -> list[tuple[str, Rows]]:
        """Samples by gauge, as of now."""
        return list(file_rows(self.figures, self._wall()))


def file_rows(figures: FileFigures | None, now_unix: float) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; none without figures."""
    if figures is None:
        return
    yield "tidegate_files", [((state,), float(figures.files.get(state, 0))) for state in FILE_STATES]
    yield "tidegate_file_bytes", [((state,), float(figures.bytes.get(state, 0))) for state in FILE_STATES]
    yield "tidegate_batches", [((state,), float(figures.batches.get(state, 0))) for state in BATCH_STATES]
    since = figures.oldest_unix
    yield "tidegate_batch_oldest_line_seconds", [((), 0.0 if since is None else max(0.0, now_unix - since))]
