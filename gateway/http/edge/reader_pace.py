"""The pace of a caller to whom a coroutine of the gateway sends a long reply piece by piece, as the caller reads it."""

import asyncio

from gateway.http.edge.exchange import Listener


class ReaderPace(Listener):
    """Holds a sender back while its reader is slow, and knows when the reader has left."""

    def __init__(self) -> None:
        self._room = asyncio.Event()
        self._room.set()
        self.left = False

    def full(self) -> None:
        self._room.clear()

    def drained(self) -> None:
        self._room.set()

    def gone(self) -> None:
        self.left = True
        self._room.set()

    cut = gone

    async def may_write(self) -> bool:
        """Wait until there is room; False once the reader has left."""
        await self._room.wait()
        return not self.left
