"""All caller connections of a worker: how many there may be, which have waited too long, and how they end when the worker stops.

`Connections` is the table. `EdgeLimits` are the bounds of a caller's connection, with the reason for each default; they are filled from
`data.limits` in tidegate.yaml.
"""

import asyncio
import email.utils
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import msgspec

from domain.clock import Clock, WallClock
from domain.faults import Fault, Kind
from gateway.http.edge.client_address import TrustedProxies
from gateway.http.edge.head import RequestHead

if TYPE_CHECKING:
    from gateway.http.edge.connection import EdgeConnection
    from gateway.http.edge.exchange import Exchange


class EdgeLimits(msgspec.Struct, frozen=True):
    """Bounds of one connection and of all of them; sizes in bytes, times in seconds."""

    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body of a caller whose policy says no other size. Long prompts are about 1 MiB; the rest is room for a few inline
    images."""
    largest_body_bytes: int = 65 * 1024 * 1024
    """Largest request body that any policy can allow: ten photographs of 4 MiB in base64. Reading such a body keeps a worker busy
    meanwhile. Files are stored while they arrive, and have bounds of their own."""
    large_bodies_total_bytes: int = 512 * 1024 * 1024
    """Bytes of all bodies above `max_body_bytes` of a worker together, as declared, or as allowed where none was declared. Beyond it
    further ones are refused with 503, and those of one tenant beyond half of it."""
    max_header_bytes: int = 16 * 1024
    """Largest head of a request: target, names and values; as many bytes of framing or trailers may come in a row behind it. nginx allows
    4 x 8 KiB, llhttp's users mostly 16 KiB; a larger head towards an engine is a known way to crash one (CVE-2025-48956)."""
    max_headers: int = 64
    """Most header lines of one request; SDKs send under 25."""
    max_connections: int = 20_000
    """Most connections per worker; beyond it the longest idle one is closed, and with none idle the new one is refused."""
    header_timeout_s: float = 10.0
    """Longest time from the first byte of a request to the end of its head; ends a slowloris."""
    body_timeout_s: float = 30.0
    """Longest time from the end of the head to the end of the body."""
    min_body_rate_bytes_per_s: int = 1024
    """Least average rate of a body that has been coming for 5 s; below it the body is a slowloris too."""
    keepalive_s: float = 75.0
    """How long a connection may be idle between requests; nginx's value, above most clients' pools."""
    reply_buffer_bytes: int = 256 * 1024
    """Unsent reply bytes per connection at which reading from the engine pauses."""
    reply_buffers_total_bytes: int = 512 * 1024 * 1024
    """Unsent reply bytes of all of a worker's slow readers together; beyond it the ones slow for longest are cut off. Room for 2,048
    connections at the bound above: more are no accident."""
    slow_reader_s: float = 30.0
    """How long a reply may stay paused before its caller is cut off."""

    def body_most(self, allowed: Collection[int | None]) -> int:
        """The largest body of a caller whose policy allows any of these sizes; None in it, and none at all, stands for the usual size."""
        sizes = [self.max_body_bytes if size is None else size for size in allowed]
        return min(max(sizes), max(self.largest_body_bytes, self.max_body_bytes)) if sizes else self.max_body_bytes


IDLE_WAIT_S: Final = 1.0
"""How long an idle connection may still send a request after the port has closed: a caller that connects sends at once."""


class Connections:
    """The table of a worker's caller connections: bounds their number and their unsent bytes, and enforces their deadlines.

    Args:
        serve: starts the coroutine of a request; called once per request whose head is acceptable.
        refuse: returns the bytes of a whole reply that closes the connection; called for a request that is refused before `serve`,
            with its head where that was complete.
        log_defect: logs an error that is a defect of the gateway.
        hosts: allowed Host values in lower case; empty allows any.
        proxies: the proxies that tell the callers' addresses; None for none.
        pickers: the proxies whose endpoint picker may name engines; None for none.
        streams: whether the route of a head stores its body as it arrives, so that the body may be longer than those that are held.
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
        proxies: TrustedProxies | None = None,
        pickers: TrustedProxies | None = None,
        streams: "Callable[[RequestHead], bool]" = lambda _head: False,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.serve = serve
        self.refuse = refuse
        self.hosts = hosts
        self.proxies = proxies
        self.pickers = pickers
        self.streams = streams
        self._log_defect = log_defect
        self.draining = False
        self.open: dict[EdgeConnection, None] = {}
        """The open connections in the order in which they came, so that a run can be repeated."""
        self.idle: dict[EdgeConnection, None] = {}
        """Connections between two requests, the one idle for longest first."""
        self.slow_readers: dict[EdgeConnection, None] = {}
        """Connections whose callers read too slowly, the one slow for longest first."""
        self.large_bodies = 0
        """Bytes reserved for bodies above the usual size."""
        self.large_bodies_of: dict[str, int] = {}
        """The same by tenant."""
        self._wall = wall
        self.date_line = b""
        """The Date header line, made anew by every sweep."""
        self._dated_at = float("-inf")
        self._make_date(clock())

    def _make_date(self, now: float) -> None:
        if now - self._dated_at >= 0.5:
            self.date_line = b"date: %b\r\n" % email.utils.formatdate(self._wall(), usegmt=True).encode("ascii")
            self._dated_at = now

    def opened(self, connection: "EdgeConnection") -> Fault | None:
        """Add a new connection; a Fault says that it has to be refused."""
        self.open[connection] = None
        if len(self.open) > self.limits.max_connections:
            longest_idle = next(iter(self.idle), None)
            if longest_idle is None:
                return Fault(Kind.OVERLOADED, "Too many connections are open here. Try again shortly.")
            longest_idle.expire_idle()
        return None

    def closed(self, connection: "EdgeConnection") -> None:
        """Forget a connection that is lost."""
        self.open.pop(connection, None)
        self.idle.pop(connection, None)
        self.slow_readers.pop(connection, None)

    def sweep(self, now: float) -> None:
        """Enforce the deadlines of all connections; called a few times a second, so that no connection needs a timer.

        A connection that entered a phase since the last sweep gets its deadline here: a busy one never reads the clock for it.
        """
        self._make_date(now)
        for connection in list(self.open):
            deadline = connection.deadline
            if deadline is None:
                connection.deadline = now + connection.phase_limit_s()
            elif now >= deadline:
                try:
                    connection.expire(now)
                except Exception as error:  # noqa: BLE001 - one bad connection must not end the sweep of the others
                    self._log_defect(error, "sweep")
                    connection.abort()
        self._cut_slow_readers()

    def _cut_slow_readers(self) -> None:
        """Cut the slowest readers off while the unsent bytes of all of them are over the bound."""
        unsent_bytes = {connection: connection.transport.get_write_buffer_size() for connection in self.slow_readers}
        excess = sum(unsent_bytes.values()) - self.limits.reply_buffers_total_bytes
        for connection, unsent in unsent_bytes.items():
            if excess <= 0:
                return
            connection.cut()
            excess -= unsent

    def start_draining(self) -> None:
        """Close idle connections now, and every other one after its reply."""
        self.draining = True
        for connection in list(self.idle):
            connection.expire_idle()

    async def wait_for_idle(self, until: float, poll_s: float = 0.02) -> None:
        """Wait until no connection is idle, at most `until`. Called once nothing is accepted any more: the request of a connection that
        was accepted a moment ago is on its way or lies in the socket, and closing the connection now would lose it."""
        await asyncio.sleep(poll_s)  # a socket that the kernel has handed over becomes a connection only after this turn of the loop
        while self.idle and self.clock() < until:
            await asyncio.sleep(poll_s)
        # A process that was not run for a while finds its time over before it has read its sockets. The first of these turns reads them;
        # the second hands over what was read, where the loop is asyncio's own.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def wait_until_empty(self, poll_s: float = 0.02) -> None:
        """Wait until no connection is open."""
        while self.open:
            await asyncio.sleep(poll_s)
