"""Reads the usage of this host that SQL may not have yet from the folder of the write-ahead logs."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from domain.clock import WallClock
from tenancy.stores.under_way import left_under_way
from tenancy.stores.wal_folder import SEALED, all_segments, parts, size_and_oldest
from tenancy.usage_event import UsageEvent
from tenancy.wal_frames import read_frames

READ_BYTES: Final = 64 * 1024 * 1024
"""About 250,000 requests."""

log = structlog.get_logger("tidegate.reconcile")


class Unbooked:
    """Usage that waits in the write-ahead logs (`gateway.reconcile.Waiting`).

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
                log.warning("more usage waits for the ledger than can be counted at once; limits count the rest when it is booked")
                break
        return events

    def _lost(self) -> list[UsageEvent]:
        events: list[UsageEvent] = []
        with contextlib.suppress(OSError):  # booked and removed meanwhile
            for part in parts(self._folder):
                if part.left:
                    events += (event for event in left_under_way(part.path) if isinstance(event, UsageEvent))
        return events

    async def oldest_s(self) -> float:
        """Seconds since the oldest segment was last written to; infinite while the disk is full, because events then wait in memory."""
        if self._full():
            return math.inf
        _, oldest = await asyncio.to_thread(lambda: size_and_oldest(all_segments(self._folder)))
        return 0.0 if oldest is None else max(self._wall() - oldest, 0.0)
