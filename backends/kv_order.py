"""Two bounded buffers of a stream of numbered batches: the batches that wait for a replay, and stamps of the last ones applied. Pure."""

from collections import deque
from typing import Final

MAX_WAITING: Final = 10_000
"""Batches kept while a replay is under way, as many as engines keep for one."""
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
RECENT: Final = 64
"""Batches remembered, to tell a repeated batch from another process's."""
STAMP_BYTES: Final = 64
"""Length of the beginning of a batch that identifies it: its whole time, and the beginning of its first event."""


class Waiting:
    """Batches that wait for the end of a replay, in order of arrival, bounded in number and bytes."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, seq: int, payload: bytes) -> bool:
        """Add a batch; False when the bound is exceeded, and then all batches are dropped."""
        self._batches.append((seq, payload))
        self._bytes += len(payload)
        if len(self._batches) <= MAX_WAITING and self._bytes <= MAX_WAITING_BYTES:
            return True
        self.clear()
        return False

    @property
    def first(self) -> int:
        """The sequence number of the oldest batch."""
        return self._batches[0][0]

    def take(self) -> tuple[int, bytes]:
        """Remove and return the oldest batch with its sequence number."""
        seq, payload = self._batches.popleft()
        self._bytes -= len(payload)
        return seq, payload

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self._bytes = 0


class Recent:
    """Stamps of the last `RECENT` batches."""

    __slots__ = ("_stamps",)

    def __init__(self) -> None:
        self._stamps: dict[int, bytes] = {}

    def add(self, seq: int, payload: bytes) -> None:
        """Remember this batch, and forget the oldest."""
        self._stamps[seq] = payload[:STAMP_BYTES]
        if len(self._stamps) > RECENT:
            del self._stamps[next(iter(self._stamps))]

    def __contains__(self, seq: int) -> bool:
        return seq in self._stamps

    def same(self, seq: int, payload: bytes) -> bool:
        """Whether this very batch is among them."""
        return self._stamps.get(seq) == payload[:STAMP_BYTES]
