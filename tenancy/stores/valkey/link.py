"""One connection to one Valkey server: commands in, replies out in order, each within its time limit.

Commands that are sent in the same turn of the event loop leave in one write; the replies of one read resolve together. There is no
task, no lock and no timer per command, which makes it cheaper than a client library (docs/reference/stores.md has the figures).
Knows no script, no slot and no other connection.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from hiredis import ProtocolError, Reader, pack_command

from tenancy.ports import CountersAway

MAX_WAITING: Final = 10_000
"""Commands without a reply on one connection; further ones are refused. At 50 ms each that is 200,000 a second, more than
one server does."""
STALLED_S: Final = 0.005
"""When this event loop checks a deadline later than that, the loop itself was stalled, and the reply may be in the socket already: it
is read before any command is given up."""

pack: Final = cast(Callable[[tuple[bytes | str | int, ...]], bytes], pack_command)
"""A command as RESP. The type of hiredis's own function allows one part only."""

_NOT_YET: Final = object()


class Link(asyncio.Protocol):
    """Speaks RESP2 over a stream transport. It calls `late` with the number of commands that ran out of time, and `lost` when the
    connection ends."""

    def __init__(self, late: Callable[[int], None], lost: Callable[["Link", str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._late = late
        self._lost = lost
        self._reader = Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._read_first = False

    def send(self, packed: bytes, within_s: float) -> asyncio.Future[Any]:
        """The future reply to one packed command; an error reply is a result too.

        The future fails with CountersAway when the reply does not come in time or the connection ends. Callers send commands in the order
        of their deadlines.
        """
        loop = self._loop
        future = loop.create_future()
        if self._transport is None or len(self._waiting) >= MAX_WAITING:
            future.set_exception(CountersAway("the connection is closed" if self._transport is None else "too many commands wait"))
            return future
        deadline = loop.time() + within_s
        self._waiting.append((future, deadline))
        if not self._out:
            loop.call_soon(self._flush)
        self._out.append(packed)
        if deadline < self._due:
            self._arm(deadline, deadline)
        return future

    def abort(self, why: str) -> None:
        """End the connection at once; all waiting commands fail with `why`."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._end(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        waiting = self._waiting
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOT_YET:
                future = waiting.popleft()[0]
                if not future.done():
                    future.set_result(reply)
        except (ProtocolError, IndexError):
            self.abort("the server does not speak the protocol")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._end(f"the connection was lost ({type(exc).__name__})" if exc else "the server closed the connection")

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _arm(self, at: float, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        due = self._due
        self._timer = None
        self._due = math.inf
        if now - due > STALLED_S and not self._read_first:
            self._read_first = True
            self._arm(now + 0.001, due)
            return
        self._read_first = False
        late = 0
        for future, deadline in self._waiting:  # late ones stay in it, so that their replies are not taken for the next ones'
            if deadline > now:
                self._arm(deadline, deadline)
                break
            if not future.done():
                future.set_exception(CountersAway("the store did not answer in time"))
                late += 1
        if late:
            self._late(late)

    def _end(self, why: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(CountersAway(why))
        self._out.clear()
        self._lost(self, why)
