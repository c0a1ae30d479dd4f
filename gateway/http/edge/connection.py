"""The connection of a caller: HTTP/1.1 in, one exchange at a time, bytes out. The only file of the edge with a transport.

A second request may follow on the same connection, but not before the reply to the first one is over: pipelined bytes are never
parsed, and the connection closes after the reply under way, so a smuggled second request has nowhere to go.
"""

import asyncio
import socket
from collections.abc import Callable
from math import inf
from typing import Final, cast

import httptools

from backends.read_turns import FULL, take_turns
from domain.faults import Fault, Kind
from gateway.http.edge.door import Connections
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.request_reader import RequestReader
from gateway.http.edge.upgrade import without_upgrade

LINGER_S: Final = 2.0
"""How long the bytes of a refused request are read and dropped before the connection closes. Closing at once would make the kernel
send a reset, which can overtake the refusal, so that the caller would never read it."""

BODY_GRACE_S: Final = 5.0
"""How long a body may come at any rate; slow starts are normal on mobile networks."""


def _drop(data: bytes) -> None:
    """The `write` of a connection that is lost."""


class EdgeConnection(RequestReader, asyncio.Protocol):
    """The transport's side of a caller's connection: its socket, its deadlines, and when it closes."""

    __slots__ = ("_begun", "_body_since", "_head_so_far", "_lingering", "_served", "_unsent", "transport", "write")

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._begun = False
        """Whether the first byte of a request has arrived."""
        self._served = False
        """Whether the coroutine of the request was started."""
        self._lingering = False
        """Whether a refusal is out and what the caller still sends is dropped."""
        self._head_so_far = b""
        self._unsent = 0
        self._body_since = 0.0
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], object] = _drop
        """Hands bytes to the socket; drops them once the socket is lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of it
        self.write = self.transport.write
        self.transport.set_write_buffer_limits(high=self.connections.limits.reply_buffer_bytes)
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        refusal = self.connections.opened(self)
        if refusal is None:
            self._rest()
        else:
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        if len(data) >= FULL:
            take_turns(self.transport, lambda: True)
        if self._lingering or self._ignore:
            return
        if self._exchange is None:
            if not self._begun:
                self._begun = True
                self.deadline = None
                self.connections.idle.pop(self, None)
            self._read_bytes += len(data)
            self._head_so_far = self._head_so_far + data if self._head_so_far else data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if not self._served and not self._ignore:
                self._read_again()
                return
            self._ignore_pipelined()  # the offer came behind a request that is being served
        except httptools.HttpParserError as error:
            self._broken(f": {error}")
        self._after_feed()

    def _broken(self, why: str) -> None:
        if self._exchange is None or not self._exchange.complete:
            self._violate(Kind.MALFORMED_HTTP, f"The request is not well-formed HTTP/1.1{why}.")
        else:
            self._ignore_pipelined()  # bytes behind a complete request: never looked at

    def _after_feed(self) -> None:
        """Refuse the request, or serve it, once the parser has read the bytes."""
        exchange, violation = self._exchange, self._violation
        if exchange is None:
            limit = self.connections.limits.max_header_bytes
            if violation is None and self._read_bytes > limit:
                violation = Fault(Kind.HEADERS_TOO_LARGE, f"A request head may have {limit} bytes.")
            if violation is not None:
                self._refuse(violation)
            return
        if violation is not None and exchange.refusal is None and not exchange.complete:
            self._close_after = True
            exchange.body_is_over(violation)
        if not self._served:
            self._served = True
            self._head_so_far = b""
            if not exchange.complete and exchange.refusal is None:
                self._body_since = self.connections.clock()
                self.deadline = None
            self.connections.serve(exchange)

    def _read_again(self) -> None:
        """Read a head that offers another protocol once more, without the offer."""
        self._exchange = None
        self._forget_head()
        head_without_offer = without_upgrade(self._head_so_far)
        if head_without_offer is None:
            self._refuse(Fault(Kind.MALFORMED_HTTP, "Protocol upgrades are not offered here; use plain HTTP/1.1."))
            return
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(head_without_offer)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._broken("")
        self._after_feed()

    def eof_received(self) -> bool:
        return False  # a caller that stops sending while we answer has left: close both ways

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.closed(self)
        self.write = _drop
        self.deadline = inf
        del self._parser  # it refers to us: without it a connection that is over is gone at once
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.finished:
            exchange.connection_gone()

    def pause_writing(self) -> None:
        self.connections.slow_readers[self] = None
        if self._exchange is not None:
            self._exchange.listener.full()

    def resume_writing(self) -> None:
        self.connections.slow_readers.pop(self, None)
        if self._exchange is not None:
            self._exchange.listener.drained()

    def closes_after(self, exchange: Exchange) -> bool:
        """Whether the connection closes after the reply of `exchange`."""
        return self._close_after or self.connections.draining or not exchange.head.keep_alive or not exchange.complete

    def exchange_over(self, *, close: bool) -> None:
        """Get ready for the next request once a reply is out, or close."""
        exchange, self._exchange = self._exchange, None
        if close or self._close_after:
            if exchange is not None and not exchange.complete:
                self._linger()
                return
            self.deadline = None
            self.transport.close()
            return
        self._served = False
        self._forget_head()
        self._read_bytes = 0
        self._begun = False
        self._rest()

    def abort(self) -> None:
        """Drop the connection at once."""
        self.transport.abort()

    def cut(self) -> None:
        """Drop the connection of a caller that reads too slowly, with the reply bytes on their way."""
        if self._exchange is not None:
            self._exchange.listener.cut()
        self.transport.abort()

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed: of an idle connection, a head, a body, an unread reply, or the wait after a refusal."""
        exchange, limits = self._exchange, self.connections.limits
        if self._lingering:
            self.transport.abort()
        elif exchange is None and self._unsent:
            read_by_caller = self._unsent - self.transport.get_write_buffer_size()
            if read_by_caller < min(self._unsent, limits.min_body_rate_bytes_per_s * limits.slow_reader_s):
                self.transport.abort()
            else:
                self.deadline = None
        elif exchange is None:
            if not self._begun:
                self.expire_idle()
            else:
                self._refuse(Fault(Kind.REQUEST_TIMEOUT, f"The request head did not arrive within {limits.header_timeout_s:g} s."))
        elif not exchange.complete and exchange.refusal is None:
            age = now - self._body_since
            if age < limits.body_timeout_s and exchange.body_bytes >= limits.min_body_rate_bytes_per_s * age:
                self.deadline = now + 1.0
                return
            self.deadline = inf
            self._close_after = True
            exchange.body_is_over(Fault(Kind.REQUEST_TIMEOUT, "The request body arrived too slowly."))

    def expire_idle(self) -> None:
        """Close a connection that is between two requests."""
        self.connections.idle.pop(self, None)
        self.deadline = None
        self.transport.close()

    def phase_limit_s(self) -> float:
        """How long the current phase may last: reading a body, sending the rest of a reply, reading a head, or waiting for a request."""
        limits = self.connections.limits
        if self._exchange is not None:
            return BODY_GRACE_S
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent:
            return limits.slow_reader_s
        return limits.header_timeout_s if self._begun else limits.keepalive_s

    def _rest(self) -> None:
        self.deadline = None
        self.connections.idle[self] = None

    def _refuse(self, fault: Fault) -> None:
        self._close_after = True
        self.connections.idle.pop(self, None)
        status, _, rest = self.connections.refuse(fault, None).partition(b"\r\n")
        self.write(b"%b\r\n%b%b" % (status, self.connections.date_line, rest))
        self._linger()

    def _linger(self) -> None:
        """Close the sending half, and read and drop what the caller still sends."""
        self._lingering = True
        self.deadline = self.connections.clock() + LINGER_S
        self.write = _drop
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        elif not self.transport.is_closing():
            self.transport.close()
