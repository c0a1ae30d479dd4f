"""The connection of a caller: HTTP/1.1 in, one exchange at a time, bytes out. The only file of the edge with a transport.

`EdgeConnection` is the transport's side. `RequestReader` reads requests: the callbacks of llhttp, their checks, and the Exchange that
they make. A second request may follow on the same connection, but not before the reply to the first one is over: pipelined bytes are never
parsed, and the connection closes after the reply in progress, so a smuggled second request has nowhere to go.

A connection may become a tunnel (`upgrade`), once the coroutine of a request that asked for a WebSocket wants it: from then on its bytes go
to the session as they come.

Size: the reader and the transport share the state of one request.
"""

import asyncio
import socket
from collections.abc import Callable, Collection
from math import inf
from typing import Any, Final, cast

import httptools

from backends.read_turns import FULL, take_turns
from domain.faults import Fault, Kind
from gateway.http.edge.body_size import body_too_large, reserve_body, reserve_growth, reserve_stream
from gateway.http.edge.connections import Connections
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import HTTP2_PREFACE, HTTP2_REFUSAL, ONCE, checked_head, offers_websocket, size_of, without_upgrade


class RequestReader:
    """Reads one request at a time; bytes behind it are never looked at."""

    __slots__ = (
        "_close_after",
        "_exchange",
        "_headers",
        "_ignore",
        "_odd_lines",
        "_parser",
        "_read_bytes",
        "_target",
        "_violation",
        "connections",
        "deadline",
        "peer",
        "speaks_1_0",
    )

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._ignore = False
        """Whether further bytes are dropped unread."""
        self._close_after = False
        """Whether the connection closes after the reply under way."""
        self._violation: Fault | None = None
        """The first rule that the request breaks."""
        self._read_bytes = 0
        self.speaks_1_0 = False
        self.peer = ""
        """The address that the connection comes from."""
        self.deadline: float | None = inf
        """When `Connections.sweep` calls `expire`; None where a phase began and the next sweep sets the deadline."""
        self._forget_head()

    def _forget_head(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._odd_lines = 0

    def on_message_begin(self) -> None:
        """Note that a request begins; one that comes before the reply to the last one is pipelined, and is not read."""
        if self._exchange is not None:
            self._ignore_pipelined()

    def _ignore_pipelined(self) -> None:
        """Drop further bytes unread, and close after the reply under way."""
        self._ignore = True
        self._close_after = True

    def on_url(self, url: bytes) -> None:
        """Collect a piece of the request target."""
        if not self._ignore:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header line; a trailer line counts and is dropped."""
        if self._ignore:
            return
        name = name.lower()
        headers = self._headers
        if self._exchange is None and name not in headers:
            headers[name] = value
        else:
            self._odd_line(name, value)

    def _odd_line(self, name: bytes, value: bytes) -> None:
        """Join a repeated header to the first one, or count a trailer."""
        self._odd_lines += 1
        if self._odd_lines > self.connections.limits.max_headers:
            self._violate(Kind.HEADERS_TOO_LARGE, f"A request may have {self.connections.limits.max_headers} header lines.")
        elif self._exchange is None:
            if name in ONCE:
                self._violate(Kind.MALFORMED_HTTP, f"The header {name.decode('ascii')!r} may be sent only once.")
            self._headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        """Check the complete head and open the exchange."""
        if self._ignore or self._violation is not None:
            return
        parser, limits, headers = self._parser, self.connections.limits, self._headers
        if len(headers) + self._odd_lines > limits.max_headers or (
            self._read_bytes > limits.max_header_bytes and len(self._target) + size_of(headers) > limits.max_header_bytes
        ):
            allowed = f"{limits.max_headers} lines and {limits.max_header_bytes} bytes, the request line included"
            self._violate(Kind.HEADERS_TOO_LARGE, f"A request head may have {allowed}.")
            return
        version = parser.get_http_version()
        try:
            head = checked_head(
                parser.get_method(),
                self._target,
                version,
                headers,
                keep_alive=parser.should_keep_alive(),
                hosts=self.connections.hosts,
            )
        except Fault as fault:
            self._violation = fault
            return
        self.speaks_1_0 = version == "1.0"
        proxies = self.connections.proxies
        client = self.peer if proxies is None else proxies.client(self.peer, headers)
        self._exchange = Exchange(cast("EdgeConnection", self), head, client)
        self.deadline = inf
        length = head.content_length
        beyond = length is not None and length > limits.max_body_bytes and length > limits.largest_body_bytes
        if beyond and not self.connections.streams(head):
            self._violation = body_too_large(length, limits.body_most((limits.largest_body_bytes, None)))

    def on_body(self, data: bytes) -> None:
        """Collect body bytes; they are counted, whatever length was declared."""
        exchange = self._exchange
        if self._ignore or exchange is None or exchange.refusal is not None or self._violation is not None:
            return
        if exchange.streams:
            exchange.take_streamed(data)
            return
        if len(exchange.received) + len(data) > (exchange.body_most or self.connections.limits.max_body_bytes):
            if not exchange.body_most:
                self.hold_body()
            elif (refusal := reserve_growth(exchange, self.connections)) is not None:
                self._violation = refusal
                return
        if exchange.received:
            exchange.take(data)
        else:
            exchange.received = data  # most bodies come in one piece: kept as it is

    def hold_body(self) -> None:
        """Called for a body above the usual size while its caller, and the size that the caller may send, are not known yet, and for one
        that arrives faster than it is handed on."""

    def on_message_complete(self) -> None:
        """Hand the complete body over."""
        exchange = self._exchange
        if self._ignore or exchange is None or self._violation is not None or exchange.complete:
            return
        self.deadline = inf
        if exchange.waiter is None:
            exchange.complete = True
        else:
            exchange.body_is_over(None)

    def _violate(self, kind: Kind, message: str) -> None:
        if self._violation is None:
            self._violation = Fault(kind, message)


LINGER_S: Final = 2.0
"""How long the bytes of a refused request are read and dropped before the connection closes. Closing at once would make the kernel
send a reset, which can overtake the refusal, so that the caller would never read it."""

BODY_GRACE_S: Final = 5.0
"""How long a body may come at any rate; slow starts are normal on mobile networks."""

MAX_FRAMING_BYTES: Final = 64 * 1024
"""Bytes of chunk sizes, chunk extensions and trailers that a body may have besides as many as its own. 13,000 chunks of one byte, or any
number of chunks of five bytes, are below it: an encoder that writes each of its tokens at once is slow, but no attack."""

FED_AT_ONCE_BYTES: Final = 64 * 1024
"""Bytes of a head that llhttp gets as they come. Beyond it llhttp gets whole lines, or a quarter more of the head: the parser's Python side
joins the pieces of a line by copying all of them, which would take quadratic time for a long line in small pieces."""


def _drop(data: bytes) -> None:
    """The `write` of a connection that is lost."""


class EdgeConnection(RequestReader, asyncio.Protocol):
    """The transport's side of a caller's connection: its socket, its deadlines, and when it closes."""

    __slots__ = (
        "_begun",
        "_body_held",
        "_body_since",
        "_framing_bytes",
        "_framing_run_bytes",
        "_head_so_far",
        "_held_at",
        "_held_back",
        "_lingering",
        "_served",
        "_tunnel",
        "_unsent",
        "transport",
        "write",
    )

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._begun = False
        """Whether the first byte of a request has arrived."""
        self._served = False
        """Whether the coroutine of the request was started."""
        self._lingering = False
        """Whether a refusal is out and what the caller still sends is dropped."""
        self._head_so_far: bytes | bytearray = b""
        """The bytes of the request up to and with the read that completes its head."""
        self._held_back = 0
        """The bytes at the end of `_head_so_far` that llhttp has not got yet."""
        self._framing_bytes = 0
        """Bytes behind the head that are no bytes of the body."""
        self._framing_run_bytes = 0
        """Framing bytes since the last bytes of the body."""
        self._tunnel: Callable[[bytes], None] | None = None
        """Takes the caller's bytes once the connection is no longer HTTP."""
        self._unsent = 0
        self._body_since = 0.0
        self._body_held = False
        """Whether nothing is read for now (`hold_body`)."""
        self._held_at = 0.0
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
            self.peer = self.transport.get_extra_info("peername", ("",))[0]
        refusal = self.connections.opened(self)
        if refusal is None:
            self._rest()
        else:
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        if len(data) >= FULL:
            take_turns(self.transport, lambda: not self._body_held)
        if self._lingering or self._ignore:
            if self._tunnel is not None:
                self._tunnel(data)
            return
        begun_exchange = self._exchange
        body_bytes = 0
        if begun_exchange is not None:
            body_bytes = len(begun_exchange.received) + begun_exchange.handed_on
        elif not self._begun:
            self._begun = True
            self.deadline = None
            self.connections.idle.pop(self, None)
            self._read_bytes = len(data)
            self._head_so_far = data
        else:
            data = self._more_of_the_head(data)
            if not data:
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if not self._served and not self._ignore:
                self._read_again()
                return
            self._ignore_pipelined()  # the offer came behind a request that is being served
        except httptools.HttpParserError as error:
            self._broken(f": {error}")
        if begun_exchange is not None:
            self._bound_framing(begun_exchange, len(data), body_bytes)
        exchange = self._exchange
        if exchange is not None and exchange.complete and not self._served and self._violation is None:
            self._served = True  # the usual case: the bytes end a whole request
            self._head_so_far = b""
            self.connections.serve(exchange)
        else:
            self._after_feed()

    def _more_of_the_head(self, data: bytes) -> bytes:
        """The bytes to hand to llhttp after a further read of an incomplete head; none where a long line has to grow first."""
        if isinstance(self._head_so_far, bytes):
            self._head_so_far = bytearray(self._head_so_far)
        self._head_so_far += data
        self._read_bytes += len(data)
        held_back = self._held_back + len(data)
        if self._read_bytes > FED_AT_ONCE_BYTES and held_back < self._read_bytes // 4 and b"\n" not in data:
            self._held_back = held_back
            return b""
        if self._held_back:
            data = bytes(self._head_so_far[-held_back:])
            self._held_back = 0
        return data

    def _bound_framing(self, exchange: Exchange, read_bytes: int, body_bytes: int) -> None:
        """Count the bytes of a read behind the head that are no bytes of the body, and refuse too many of them.

        Args:
            body_bytes: the body's bytes before this read.
        """
        grown = len(exchange.received) + exchange.handed_on - body_bytes
        self._framing_bytes += read_bytes - grown
        self._framing_run_bytes = 0 if grown else self._framing_run_bytes + read_bytes
        limit = self.connections.limits.max_header_bytes
        if exchange.complete:
            if self._framing_run_bytes > limit:
                self._ignore_pipelined()
        elif self._framing_bytes > MAX_FRAMING_BYTES + len(exchange.received) + exchange.handed_on or self._framing_run_bytes > limit:
            allowed = f"{limit} bytes in a row, {MAX_FRAMING_BYTES} in all, and one for each byte of the body"
            self._violate(
                Kind.BODY_TOO_LARGE, f"Chunk sizes, chunk extensions and trailers may have {allowed}. Send the body with its length."
            )

    def hold_body(self) -> None:
        if not self._body_held:
            self._body_held = True
            self._held_at = self.connections.clock()
            self.transport.pause_reading()

    def go_on_reading(self) -> None:
        """Read again after `hold_body`."""
        if self._body_held:
            self._body_held = False
            if self._exchange is not None and self._exchange.streams:
                self._body_since += self.connections.clock() - self._held_at  # the caller was ready to send meanwhile
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def allow_body(self, exchange: Exchange, allowed: Collection[int | None]) -> None:
        """Let a body come up to the largest size that its caller's policy allows, or refuse it."""
        self._begin_body(exchange, reserve_body(exchange, allowed, self.connections))
        self.go_on_reading()

    def stream_body(self, exchange: Exchange, most: int) -> None:
        """Let a body of at most so many bytes come to be handed on as it arrives, or refuse it."""
        exchange.streams = True
        self._begin_body(exchange, reserve_stream(exchange, most, self.connections))

    def _begin_body(self, exchange: Exchange, refusal: Fault | None) -> None:
        if refusal is not None:
            if not exchange.complete:
                self._ignore_pipelined()
            exchange.body_is_over(refusal)

    def _broken(self, why: str) -> None:
        if self._exchange is None or not self._exchange.complete:
            self._violate(Kind.MALFORMED_HTTP, f"The request is not well-formed HTTP/1.1{why}.")
        else:
            self._ignore_pipelined()  # bytes behind a complete request: never looked at

    def _after_feed(self) -> None:
        """Refuse a request that breaks a rule, or begin to serve one whose body is still on its way."""
        exchange, violation = self._exchange, self._violation
        if exchange is None:
            limit = self.connections.limits.max_header_bytes
            if violation is None and self._read_bytes > limit:
                violation = Fault(Kind.HEADERS_TOO_LARGE, f"A request head may have {limit} bytes.")
            if violation is not None:
                self._refuse(violation)
            return
        if violation is not None and exchange.refusal is None and not exchange.complete:
            self._ignore_pipelined()
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
        head_without_offer = without_upgrade(bytes(self._head_so_far))
        if head_without_offer is None:
            self._refuse(Fault(Kind.MALFORMED_HTTP, "Protocol upgrades are not offered here; use plain HTTP/1.1."))
            return
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(head_without_offer)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._broken("")
        if self._exchange is not None and not self.speaks_1_0 and offers_websocket(self._head_so_far):
            self._exchange.head.headers.update({b"upgrade": b"websocket", b"connection": b"upgrade"})  # the one offer that a route takes
        self._after_feed()

    def upgrade(self, tunnel: Callable[[bytes], None]) -> bool:
        """Hand the caller's further bytes to `tunnel`; False where some have come already, which nobody has read."""
        if self._ignore:
            return False
        self._ignore = True
        self._tunnel = tunnel
        return True

    def hang_up(self) -> None:
        """Close once what was written is sent, and drop what the caller still sends."""
        self._tunnel = self._exchange = None
        self._linger()

    def hold_reading(self) -> None:
        """Read no more, until `go_on_reading`."""
        if not self._body_held and not self._lingering and not self.transport.is_closing():
            self.hold_body()

    def eof_received(self) -> bool:
        return False  # a caller that stops sending while we answer has left: close both ways

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.closed(self)
        self.write = _drop
        self.deadline = inf
        self._tunnel = None
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
        if self._body_held:  # the reply did not wait until all of the body was taken
            self.go_on_reading()
        self._served = False
        self._forget_head()
        self._read_bytes = 0
        self._framing_bytes = 0
        self._framing_run_bytes = 0
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
            if self._body_held and exchange.streams:
                self.deadline = now + 1.0
                return
            age = now - self._body_since
            received = len(exchange.received) + exchange.handed_on
            longer = max(1.0, exchange.body_allowed / limits.max_body_bytes)
            if age < limits.body_timeout_s * longer and received >= limits.min_body_rate_bytes_per_s * age:
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
        if self._head_so_far.startswith(HTTP2_PREFACE):
            self.write(HTTP2_REFUSAL)
        else:
            self.write(b"%b\r\n%b%b" % (status, self.connections.date_line, rest))
        self._linger()

    def _linger(self) -> None:
        """Close the sending half, and read and drop what the caller still sends."""
        self._lingering = True
        self.go_on_reading()
        self.deadline = self.connections.clock() + LINGER_S
        self.write = _drop
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        elif not self.transport.is_closing():
            self.transport.close()
