"""What lies in the folder of the write-ahead logs: usage of this host that SQL may not have yet."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from domain.clock import WallClock
from tenancy.stores.under_way import left_under_way
from tenancy.stores.wal_folder import SEALED, all_segments, parts, standing_of
from tenancy.usage_event import UsageEvent
from tenancy.wal_frames import read_frames

READ_BYTES: Final = 64 * 1024 * 1024
"""About 250,000 requests."""

log = structlog.get_logger("tidegate.reconcile")


class Unbooked:
    """See `gateway.reconcile.Waiting`.

    Args:
        full: whether this process's own log finds no room on disk.
    """

    def __init__(self, folder: Path, full: Callable[[], bool], wall: WallClock) -> None:
        self._folder, self._full, self._wall = folder, full, wall

    async def events(self) -> list[UsageEvent]:
        """What the segments hold, those of ended processes and those that are written to now; booked or not. At most `READ_BYTES`
        are read, the oldest first. Before them what dead processes had under way, which a row of the same request replaces."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[UsageEvent]:
        found = self._lost()
        left = READ_BYTES
        for path in sorted(all_segments(self._folder), key=lambda path: path.name):
            data = b""
            for name in (path, path.with_suffix(SEALED)):  # it may be sealed, or booked and removed, while we look
                with contextlib.suppress(OSError):
                    data = name.read_bytes()
                    break
            found += (one for one in read_frames(data) if isinstance(one, UsageEvent))
            left -= len(data)
            if left < 0:
                log.warning("more usage waits for the ledger than can be counted at once; limits count the rest when it is booked")
                break
        return found

    def _lost(self) -> list[UsageEvent]:
        found: list[UsageEvent] = []
        with contextlib.suppress(OSError):  # booked and removed while we look
            for part in parts(self._folder):
                if part.left:
                    found += (one for one in left_under_way(part.path) if isinstance(one, UsageEvent))
        return found

    async def oldest_s(self) -> float:
        """Since the oldest of them was written to last. What the disk does not take waits without an end in sight."""
        if self._full():
            return math.inf
        _, oldest = await asyncio.to_thread(lambda: standing_of(all_segments(self._folder)))
        return 0.0 if oldest is None else max(self._wall() - oldest, 0.0)
