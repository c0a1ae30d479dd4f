"""Finished requests as Parquet files: one folder a day, a file each few minutes, for queries by other programs and for `tidegate simulate`.

Rows wait in memory until a file is worth it, so a crash loses those of a few minutes; the store has them. A file appears under its name
when it is whole. The columns are those of `tenancy.request_log.LoggedRequest` without the end user; `line` is the line of the access log.
"""

import asyncio
import datetime as dt
import shutil
from pathlib import Path
from typing import Any, Final

from domain.clock import WallClock
from tenancy.request_log import LoggedRequest

FILE_ROWS: Final = 5_000
"""Rows of a file that is written before its time: about 10 MB in memory, 1 MB on disk."""
FILE_S: Final = 300.0
"""Longest wait of a row for its file."""
DAY: Final = "day="
"""In front of a folder's day, as engines that read partitioned Parquet take it."""
COLUMNS: Final = (
    "at_us",
    "id",
    "duration_us",
    "tenant",
    "project",
    "key_id",
    "endpoint",
    "model",
    "pool",
    "backend",
    "outcome",
    "rule",
    "cache",
)


class ParquetRequests:
    """Writes finished requests as Parquet files (`gateway.request_log.collector.RequestSink`).

    Args:
        folder: of the folders of days.
        name: part of the files' names; different for every process.
        days: how long folders are kept.
    """

    def __init__(self, folder: Path, name: str, days: int, wall: WallClock) -> None:
        self.name = "parquet"
        self._folder = folder
        self._file_name = name
        self._days = days
        self._wall = wall
        self._waiting: list[LoggedRequest] = []
        self._since = wall()
        self._files = self._written = self._failed = 0

    def figures(self) -> tuple[int, int, int, int]:
        """Requests since the start, by `gateway.telemetry.otlp.RESULTS`."""
        return self._written, 0, 0, self._failed

    async def add(self, requests: list[LoggedRequest]) -> None:
        """Take requests; they are written when they are enough, or the first has waited long."""
        if not self._waiting:
            self._since = self._wall()
        self._waiting += requests
        if len(self._waiting) >= FILE_ROWS or (self._waiting and self._wall() - self._since >= FILE_S):
            await self.close()

    async def close(self) -> None:
        """Write what waits, and remove the folders whose time is over. Raises OSError."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            before = self._written
            try:
                await asyncio.to_thread(self._write, waiting)
            except OSError:
                self._failed += len(waiting) - (self._written - before)
                raise

    def _write(self, requests: list[LoggedRequest]) -> None:
        by_day: dict[str, list[LoggedRequest]] = {}
        for request in requests:
            by_day.setdefault(_day(request.at_us / 1e6), []).append(request)
        for day, rows in by_day.items():
            self._files += 1
            into = self._folder / f"{DAY}{day}"
            into.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"requests-{self._file_name}-{self._files:06d}.parquet"
            partial = into / f".{name}.partial"
            write_parquet(partial, rows)
            partial.replace(into / name)
            self._written += len(rows)
        oldest = _day(self._wall() - self._days * 86_400)
        for folder in self._folder.glob(f"{DAY}*"):
            if folder.name[len(DAY) :] < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def write_parquet(path: Path, requests: list[LoggedRequest]) -> None:
    """Write one file. Raises OSError."""
    # imported only here: it takes 60 MB, and most gateways write no Parquet
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, list[Any]] = {name: [getattr(request, name) for request in requests] for name in COLUMNS}
    columns["line"] = [request.line.decode() for request in requests]
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")


def _day(unix: float) -> str:
    return dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%d")
