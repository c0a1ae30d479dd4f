"""A caller's connection: HTTP/1.1 in, one exchange at a time, bytes out. The only file of the edge with a transport.

A request may be followed by another on the same connection, but not before its reply is over: pipelined bytes are never
parsed, and the connection closes after the reply under way, so a smuggled second request has nowhere to go.
"""

import asyncio
import re
import socket
from math import inf
from typing import Any, Final, cast

import httptools

from domain.faults import Fault, Kind
from gateway.http.edge.door import Door
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import ONCE, checked_head

LINGER_S: Final = 2.0
"""After a refusal with request bytes still on their way: how long to read and drop them before closing. Closing at once
would make the kernel send a reset that can overtake the refusal, so the caller would never read it."""

BODY_GRACE_S: Final = 5.0
"""How long a body may come at any rate; slow starts are normal on mobile networks."""

_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_UPGRADE_OPTION: Final = re.compile(rb"(\r\nconnection:)[^\r\n]*upgrade[^\r\n]*", re.IGNORECASE)


class EdgeConnection(asyncio.Protocol):
    """See the module. `deadline` is when `Door.sweep` should look at it again."""

    __slots__ = ("_begun", "_body_since", "_close_after", "_door", "_exchange", "_headers", "_ignore", "_lingering", "_odd_lines", "_parser",
                 "_read_bytes", "_served", "_target", "_violation", "deadline", "paused_since", "speaks_1_0", "transport")  # fmt: skip

    def __init__(self, door: Door) -> None:
        self._door = door
        self._parser: Any = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._served = False
        self._ignore = False
        self._lingering = False
        self._close_after = False
        self._violation: Fault | None = None
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._odd_lines = 0
        self._read_bytes = 0
        self._begun = False
        self._body_since = 0.0
        self.speaks_1_0 = False
        self.deadline: float | None = inf
        """When the sweep should look here; None: a phase began, and the next sweep sets its deadline."""
        self.paused_since: float | None = None
        self.transport: asyncio.Transport

    # --- transport callbacks --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of it
        transport = self.transport
        transport.set_write_buffer_limits(high=self._door.limits.reply_buffer_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._rest()
        refusal = self._door.enter(self)
        if refusal is not None:
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._ignore:
            return
        if self._exchange is None:
            if not self._begun:
                self._begun = True
                self.deadline = None
                self._door.idle.pop(self, None)
            self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._without_upgrade(data)
            return
        except httptools.HttpParserError as error:
            if self._exchange is None or not self._exchange.complete:
                self._violate(Kind.MALFORMED_HTTP, f"The request is not well-formed HTTP/1.1: {error}.")
            else:
                self._ignore = self._close_after = True  # bytes after a complete request: never looked at
        self._after_feed()

    def _after_feed(self) -> None:
        exchange, violation = self._exchange, self._violation
        if exchange is None:
            limit = self._door.limits.max_header_bytes
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
            if not exchange.complete and exchange.refusal is None:
                self._body_since = self._door.clock()
                self.deadline = None
            self._door.serve(exchange)

    def _without_upgrade(self, data: bytes) -> None:
        """A cleartext HTTP/2 offer (Java's HttpClient makes one on every connection) may be ignored: RFC 9110, 7.8.

        llhttp stops reading at such a head, so it is fed again without the offer, when it came whole in one read.
        """
        head, found, rest = data.partition(b"\r\n\r\n")
        self._exchange, self._target, self._headers, self._odd_lines = None, b"", {}, 0
        stripped = _UPGRADE_OPTION.sub(rb"\1 keep-alive", _UPGRADE.sub(b"", head))
        if not found or head.startswith(b"CONNECT") or stripped == head or self._served:
            self._refuse(Fault(Kind.MALFORMED_HTTP, "Protocol upgrades are not offered here; use plain HTTP/1.1."))
            return
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(stripped + found + rest)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._exchange = None
            self._violate(Kind.MALFORMED_HTTP, "The request is not well-formed HTTP/1.1.")
        self._after_feed()

    def eof_received(self) -> bool:
        return False  # a caller that stops sending while we answer has left: close both ways

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        self.deadline = inf
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.finished:
            exchange.connection_gone()

    def pause_writing(self) -> None:
        self.paused_since = self._door.clock()
        if self._exchange is not None:
            self._exchange.listener.full()

    def resume_writing(self) -> None:
        self.paused_since = None
        if self._exchange is not None:
            self._exchange.listener.drained()

    # --- parser callbacks: take notes, never raise ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins; while another is under way it is pipelined and will not be read."""
        if self._exchange is not None:
            self._ignore = self._close_after = True

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        if not self._ignore:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, or a trailer line, which counts but is dropped."""
        if self._ignore:
            return
        name = name.lower()
        headers = self._headers
        if self._exchange is None and name not in headers:
            headers[name] = value
        else:
            self._odd_line(name, value)

    def _odd_line(self, name: bytes, value: bytes) -> None:
        """A repeated header, or a trailer."""
        self._odd_lines += 1
        if self._odd_lines > self._door.limits.max_headers:
            self._violate(Kind.HEADERS_TOO_LARGE, f"A request may have {self._door.limits.max_headers} header lines.")
        elif self._exchange is None:
            if name in ONCE:
                self._violate(Kind.MALFORMED_HTTP, f"The header {name.decode('ascii')!r} may be sent only once.")
            self._headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        """The head is complete: check it and open the exchange."""
        if self._ignore or self._violation is not None:
            return
        parser, limits, headers = self._parser, self._door.limits, self._headers
        if len(headers) + self._odd_lines > limits.max_headers or (
            self._read_bytes > limits.max_header_bytes and _size(headers) > limits.max_header_bytes
        ):
            self._violate(Kind.HEADERS_TOO_LARGE, f"A request head may have {limits.max_headers} lines and {limits.max_header_bytes} bytes.")
            return
        version = parser.get_http_version()
        try:
            head = checked_head(
                parser.get_method(),
                self._target,
                version,
                headers,
                keep_alive=parser.should_keep_alive(),
                hosts=self._door.hosts,
            )
        except Fault as fault:
            self._violation = fault
            return
        self.speaks_1_0 = version == "1.0"
        self._exchange = Exchange(self, head)
        self.deadline = inf
        if head.content_length is not None and head.content_length > limits.max_body_bytes:
            self._violate(Kind.BODY_TOO_LARGE, f"The body has {head.content_length} bytes; {limits.max_body_bytes} are allowed.")

    def on_body(self, data: bytes) -> None:
        """Body bytes, counted whatever was declared."""
        exchange = self._exchange
        if self._ignore or exchange is None or exchange.refusal is not None or self._violation is not None:
            return
        if exchange.body_bytes + len(data) > self._door.limits.max_body_bytes:
            self._violate(Kind.BODY_TOO_LARGE, f"The body has more than the {self._door.limits.max_body_bytes} bytes allowed.")
            return
        exchange.take(data)

    def on_message_complete(self) -> None:
        """The request is complete."""
        exchange = self._exchange
        if self._ignore or exchange is None or self._violation is not None or exchange.complete:
            return
        self.deadline = inf
        exchange.body_is_over(None)

    def _violate(self, kind: Kind, message: str) -> None:
        if self._violation is None:
            self._violation = Fault(kind, message)

    # --- what exchanges and the door call -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket, unless it is gone."""
        if not self.transport.is_closing():
            self.transport.write(data)

    @property
    def date_line(self) -> bytes:
        """The Date header line."""
        return self._door.date_line

    def closes_after(self, exchange: Exchange) -> bool:
        """Whether the connection will be closed after this exchange's reply."""
        return self._close_after or self._door.draining or not exchange.head.keep_alive or not exchange.complete

    def exchange_over(self, *, close: bool) -> None:
        """The reply is out; get ready for the next request, or close."""
        exchange, self._exchange = self._exchange, None
        if close or self._close_after:
            if exchange is not None and not exchange.complete:
                self._linger()
            else:
                self.transport.close()
            return
        self._served = False
        self._target = b""
        self._headers = {}
        self._odd_lines = self._read_bytes = 0
        self._begun = False
        self._rest()

    def abort(self) -> None:
        """Drop the connection at once."""
        self.transport.abort()

    def expire(self, now: float) -> None:
        """The deadline passed: idle, head too slow, body too slow, or lingered long enough."""
        exchange, limits = self._exchange, self._door.limits
        if self._lingering:
            self.transport.abort()
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
        """Close between requests."""
        self._door.idle.pop(self, None)
        self.transport.close()

    def phase_limit_s(self) -> float:
        """How long the phase the connection is in may last: idle, reading a head, or reading a body."""
        limits = self._door.limits
        if self._exchange is not None:
            return BODY_GRACE_S
        return limits.header_timeout_s if self._begun else limits.keepalive_s

    def _rest(self) -> None:
        self.deadline = None
        self._door.idle[self] = None

    def _refuse(self, fault: Fault) -> None:
        self._close_after = True
        self._door.idle.pop(self, None)
        self.write(self._door.refuse(fault, None))
        self._linger()

    def _linger(self) -> None:
        self._lingering = True
        self.deadline = self._door.clock() + LINGER_S
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        elif not self.transport.is_closing():
            self.transport.close()


def _size(headers: dict[bytes, bytes]) -> int:
    return sum([len(name) + len(value) + 4 for name, value in headers.items()])
