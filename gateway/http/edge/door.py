"""All of a worker's caller connections: how many there may be, who has waited too long, and how they end when it stops."""

import asyncio
import email.utils
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from domain.clock import Clock, WallClock
from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead
from gateway.http.edge.limits import EdgeLimits

if TYPE_CHECKING:
    from gateway.http.edge.connection import EdgeConnection
    from gateway.http.edge.exchange import Exchange


HEARD_S: Final = 1.0
"""For how long an idle connection may still be asked something after the port has closed: a caller that connects sends at once."""


class Door:
    """Shared by every connection of one worker.

    Args:
        serve: called once per request whose head is acceptable; starts its coroutine.
        refuse: called for requests that are refused before that, with the head if it was complete; returns the bytes
            of a whole reply that closes the connection.
        log_defect: told of errors that are nobody's fault but ours.
        hosts: allowed Host values in lower case; empty allows any.
    """

    def __init__(
        self,
        limits: EdgeLimits,
        clock: Clock,
        wall: WallClock,
        *,
        serve: "Callable[[Exchange], None]",
        refuse: "Callable[[Fault, RequestHead | None], bytes]",
        log_defect: Callable[[BaseException, str], None],
        hosts: frozenset[bytes] = frozenset(),
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.serve = serve
        self.refuse = refuse
        self.hosts = hosts
        self._log_defect = log_defect
        self.draining = False
        self.connections: dict[EdgeConnection, None] = {}
        """In the order in which they came, so that a run can be repeated."""
        self.idle: dict[EdgeConnection, None] = {}
        """Connections between requests, the longest idle one first."""
        self.behind: dict[EdgeConnection, None] = {}
        """Connections whose callers read too slowly, the one that has been behind for longest first."""
        self._wall = wall
        self.date_line = b""
        """The Date header line, made anew by every sweep."""
        self._dated_at = float("-inf")
        self._make_date(clock())

    def _make_date(self, now: float) -> None:
        if now - self._dated_at >= 0.5:
            self.date_line = b"date: %b\r\n" % email.utils.formatdate(self._wall(), usegmt=True).encode("ascii")
            self._dated_at = now

    def enter(self, connection: "EdgeConnection") -> Fault | None:
        """A connection came in; a Fault says that it has to go again."""
        self.connections[connection] = None
        if len(self.connections) > self.limits.max_connections:
            oldest = next(iter(self.idle), None)
            if oldest is None:
                return Fault(Kind.OVERLOADED, "Too many connections are open here. Try again shortly.")
            oldest.expire_idle()
        return None

    def leave(self, connection: "EdgeConnection") -> None:
        """A connection is gone."""
        self.connections.pop(connection, None)
        self.idle.pop(connection, None)
        self.behind.pop(connection, None)

    def sweep(self, now: float) -> None:
        """Enforce every connection's deadline; called a few times a second, so that no connection needs a timer.

        A connection that entered a phase since the last sweep gets its deadline here: busy ones never read a clock for it.
        """
        self._make_date(now)
        for connection in list(self.connections):
            deadline = connection.deadline
            if deadline is None:
                connection.deadline = now + connection.phase_limit_s()
            elif now >= deadline:
                try:
                    connection.expire(now)
                except Exception as error:  # noqa: BLE001 - one bad connection must not end the sweep of all others
                    self._log_defect(error, "sweep")
                    connection.abort()
        self._relieve()

    def _relieve(self) -> None:
        """Many slow readers together may not fill the memory."""
        behind = {connection: connection.transport.get_write_buffer_size() for connection in self.behind}
        excess = sum(behind.values()) - self.limits.reply_buffers_total_bytes
        for connection, unsent in behind.items():
            if excess <= 0:
                return
            connection.cut()
            excess -= unsent

    def start_draining(self) -> None:
        """From now on every reply closes its connection, and idle ones are closed."""
        self.draining = True
        for connection in list(self.idle):
            connection.expire_idle()

    async def heard_out(self, until: float, poll_s: float = 0.02) -> None:
        """Wait for the requests of connections that are idle, at most `until`: of one that was accepted a moment ago the request is on
        its way or lies in the socket, and closing it now would lose it. To be called when nothing is accepted any more."""
        await asyncio.sleep(poll_s)  # what the kernel has handed over is a connection only after this turn of the loop
        while self.idle and self.clock() < until:
            await asyncio.sleep(poll_s)

    async def emptied(self, poll_s: float = 0.02) -> None:
        """Wait until no connection is left."""
        while self.connections:
            await asyncio.sleep(poll_s)
