"""The default adapter of the transport port: one `asyncio.Protocol` per engine connection, bytes handed straight to the sink.

`RelayUpstream` handles connection reuse, `ReplyParser` HTTP/1.1 framing; neither interprets the bytes of the body. The parser does no I/O:
llhttp parses the grammar, the parser keeps the limits and collects the body bytes of each read. One parser serves one connection, and is
reset between replies. Measured against two libraries in `docs/explanation/decisions/0001-own-relay.md`.
"""

import asyncio
import contextlib
import socket
from collections import deque
from typing import Any, Final, cast

import httptools

from backends.clients.endpoint import EngineEndpoint, dial, tune
from backends.ports import Call, Loss, ReplySink, SessionFlight, SessionSink
from backends.read_turns import FULL, take_turns
from domain.clock import Clock

MAX_HEAD_BYTES: Final = 64 * 1024
"""Longest reply head. Engines send under 1 KiB; common clients allow 64 KiB. Trailers are dropped as they come."""

_NO_BODY: Final = (204, 304)


class ReplyError(Exception):
    """The engine's bytes are not an acceptable HTTP reply."""


class ReplyParser:
    """Parser of one connection's replies: takes bytes, and gives `status`, `headers` and the body bytes among them.

    Attributes:
        started: any byte of a reply has been seen.
        head_done: a final (not 1xx) head is complete.
        complete: the message is complete by its framing.
        reusable: after `complete`, whether the connection may carry another call.
        ends_by_close: the body has no framing of its own, so only the close ends it.
    """

    __slots__ = (
        "_body",
        "_head_bytes",
        "_interim",
        "_parser",
        "complete",
        "ends_by_close",
        "head_done",
        "headers",
        "reusable",
        "started",
        "status",
    )

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Prepare for the next reply on the same connection; llhttp itself is ready once a reusable message is complete."""
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._interim = False
        self.headers: dict[bytes, bytes] = {}
        self.status = 0
        self.started = False
        self.head_done = False
        self.complete = False
        self.reusable = False
        self.ends_by_close = False

    def close(self) -> None:
        """Drop llhttp's parser, after the last `feed`; the attributes stay. That parser refers back to this object, and without the cycle
        both are freed at once."""
        self._parser = None

    def feed(self, data: bytes) -> bytes:
        """Parse bytes from the socket; returns the body bytes in them, transfer coding removed.

        Raises:
            ReplyError: not HTTP, a head over `MAX_HEAD_BYTES`, or bytes after the end of the message.
        """
        self.started = True
        if self.complete:
            raise ReplyError("bytes after the end of the reply")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ReplyError("a change to another protocol, which was not offered") from None
        except httptools.HttpParserError as error:
            # a reply that was complete before the offending byte is passed on, but the connection is not used again
            if not self.complete:
                raise ReplyError(f"{type(error).__name__}: {error}") from None
            self.reusable = False
        if self._head_bytes <= MAX_HEAD_BYTES:
            # bytes of whole reads are counted, and the head is measured only when they exceed the limit
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._head_is_small():
                raise ReplyError(f"reply head over {MAX_HEAD_BYTES} bytes")
        body = self._body
        if not body:
            return b""
        out = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        return out

    def _head_is_small(self) -> bool:
        return self.head_done and sum([len(name) + len(value) for name, value in self.headers.items()]) <= MAX_HEAD_BYTES

    # callbacks of httptools; exceptions raised in them would be wrapped, so they only set attributes

    def on_message_begin(self) -> None:
        """The first byte of a message. After a complete message it begins a reply without a request, which the next caller would get."""
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, a trailer included."""
        if not self.head_done:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete; 1xx heads are dropped."""
        status: int = self._parser.get_status_code()
        if 100 <= status < 200:
            self._interim = True
            self.headers = {}
            return
        if self.head_done:
            return  # a second message in the same read
        self.status = status
        self.head_done = True
        headers = self.headers
        framed = b"content-length" in headers or b"transfer-encoding" in headers
        self.ends_by_close = not framed and status not in _NO_BODY

    def on_body(self, data: bytes) -> None:
        """Body bytes of the current message."""
        if not self.complete:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The message is complete; the final one follows an interim one."""
        if self._interim:
            self._interim = False
            return
        if self.complete:
            return
        self.complete = True
        self.reusable = bool(self._parser.should_keep_alive())


STALE_WINDOW_S: Final = 1.0
"""A reused connection that dies unanswered within this time counts as stale (the engine had closed it already), and the call is sent once
more on a fresh one. Later the engine may have begun to work, and the retry budget decides. The race itself takes a round trip; the rest is
slack for busy hosts."""
STALE_IDLE_S: Final = 2.0
STALE_LATE_S: Final = 5.0
"""A connection that had idled for `STALE_IDLE_S` counts as stale for `STALE_LATE_S`: a busy engine's keep-alive time (uvicorn: 5 s) ends
before it reads the request."""

SHOWN_BYTES: Final = 24
"""Bytes of a peer that is no HTTP server shown to operators: enough to recognise TLS, SSH or a database."""


class RelayUpstream:
    """The transport client of one backend, with its connection pool: the most recently used idle connection goes first, so that surplus
    ones age out."""

    def __init__(self, target: EngineEndpoint, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self._clock = clock
        self._loop = loop
        self._idle: deque[_Connection] = deque()
        self._open: dict[_Connection, None] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._pending = 0
        """Connections being made that are not in `_open` yet."""
        if target.tls is not None:
            target.tls.used_by(self)
        self._heads: dict[tuple[str, str], bytes] = {}

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of the backend."""
        return self.target.host, self.target.port

    def dispatch(self, call: Call, sink: ReplySink) -> "RelayFlight":
        """Send `call` on an idle connection, or on a new one."""
        flight = RelayFlight(self, call, sink)
        self._send(flight, reuse=True)
        return flight

    def open_session(self, call: Call, sink: SessionSink, most_bytes: int) -> SessionFlight:
        """Open a session on a connection of its own."""
        # imported only here: `websockets` is for the few gateways that serve realtime sessions
        from backends.clients.websocket import open_session

        return open_session(self.target, call, sink, most_bytes, self._loop)

    def _send(self, flight: "RelayFlight", *, reuse: bool) -> None:
        idle = self._idle
        if reuse:
            oldest = self._clock() - self.target.idle_s
            while idle:
                connection = idle.pop()
                if connection.idle_since > oldest:
                    connection.start(flight, reused=True)
                    return
                connection.shut()
        if len(self._open) + self._pending >= self.target.max_connections:
            self._loop.call_soon(flight.lose, Loss.CAPACITY, f"{self.target.max_connections} connections are open already")
            return
        self._pending += 1
        task = self._loop.create_task(self._connect(flight))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, flight: "RelayFlight") -> None:
        target = self.target
        connection = _Connection(self)
        try:
            async with asyncio.timeout(target.connect_timeout_s):
                await dial(target, self._loop, lambda: connection)
        except TimeoutError:
            flight.lose(Loss.CONNECT, f"no connection within {target.connect_timeout_s:g} s")
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
            flight.lose(Loss.CONNECT, f"{type(error).__name__}: {error}")
        else:
            if connection.unasked is not None:
                flight.lose(Loss.GARBLED, f"speaks before it is asked: {connection.unasked!r}")
            elif flight.sink is None:
                self.park(connection)
            else:
                connection.start(flight, reused=False)
            return
        finally:
            if not connection.was_open:
                self._pending -= 1
        if connection.was_open:
            connection.shut()  # it was established at the moment of the time-out

    def resend(self, flight: "RelayFlight") -> None:
        """Send a call again, on a fresh connection, because the reused one was stale."""
        self._send(flight, reuse=False)

    def park(self, connection: "_Connection") -> None:
        """Keep a connection whose reply is complete for the next call."""
        connection.idle_since = self._clock()
        self._idle.append(connection)

    def retire(self) -> None:
        """Close the idle connections, and the busy ones after their reply."""
        self._idle.clear()
        for connection in list(self._open):
            connection.retire()

    def opened(self, connection: "_Connection") -> None:
        """A connection is established."""
        self._pending -= 1
        self._open[connection] = None

    def lost(self, connection: "_Connection") -> None:
        """A connection is gone."""
        self._open.pop(connection, None)
        with contextlib.suppress(ValueError):  # it was busy, or is removed already
            self._idle.remove(connection)

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    def head_for(self, call: Call) -> bytes:
        """The constant part of the request head; kept once per route, so the map is bounded by the path allowlist.
        The type of a body that is no JSON belongs to the call."""
        key = (call.method, call.path)
        head = self._heads.get(key)
        if head is None:
            target = self.target
            lines = [
                f"{call.method} {target.prefix}{call.path} HTTP/1.1",
                f"host: {target.host_header}",
                "user-agent: tidegate",
                "accept: application/json, text/event-stream",
            ]
            if not call.content_type:
                lines.append("content-type: application/json")
            if target.authorization is not None:
                lines.append(f"authorization: {target.authorization.decode('ascii')}")
            lines += [f"{name}: {value}" for name, value in target.headers]
            head = self._heads[key] = ("\r\n".join(lines) + "\r\n").encode("ascii")
        return head

    async def close(self) -> None:
        """Close every connection; calls in flight get no more callbacks."""
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._open):
            connection.shut()
        await asyncio.sleep(0)


class RelayFlight:
    """One call in flight on the relay."""

    __slots__ = ("_upstream", "call", "connection", "sink")

    def __init__(self, upstream: RelayUpstream, call: Call, sink: ReplySink) -> None:
        self._upstream = upstream
        self.call = call
        self.sink: ReplySink | None = sink
        self.connection: _Connection | None = None

    def abort(self) -> None:
        self.sink = None
        if self.connection is not None:
            self.connection.shut()

    def pause(self) -> None:
        if self.connection is not None:
            self.connection.read(on=False)

    def resume(self) -> None:
        if self.connection is not None:
            self.connection.read(on=True)

    def lose(self, loss: Loss, detail: str) -> None:
        """Report a loss, once, unless the call was given up before."""
        sink, self.sink = self.sink, None
        self.connection = None
        if sink is not None:
            sink.on_loss(loss, detail)


class _Connection(asyncio.Protocol):
    """One socket to the engine, at most one call on it at a time."""

    def __init__(self, upstream: RelayUpstream) -> None:
        self._upstream = upstream
        self._flight: RelayFlight | None = None
        self._parser = ReplyParser()
        self._reused = False
        self._sent_at = 0.0
        self._closing = False
        self._leaving = False
        """Whether the connection carries no further call: it is closing, or is retired."""
        self._reading = True
        self.was_open = False
        self.unasked: bytes | None = None
        """The bytes that the peer sent before any call, because it is no HTTP server; None when it sent none."""
        self.idle_since = 0.0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of it
        transport = self.transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tune(sock)
        self.was_open = True
        self._upstream.opened(self)

    def start(self, flight: RelayFlight, *, reused: bool) -> None:
        """Write the request: head and body in one call, so that they leave in one segment where they fit."""
        self._flight = flight
        flight.connection = self
        self._reused = reused
        self._sent_at = self._upstream.now()
        call = flight.call
        head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n" % (
            self._upstream.head_for(call),
            call.request_id.encode("ascii"),
            len(call.body),
        )
        if call.content_type:
            head += b"content-type: %b\r\n" % call.content_type
        if call.traceparent is not None:
            head += b"traceparent: %b\r\n" % call.traceparent
            if call.tracestate is not None:
                head += b"tracestate: %b\r\n" % call.tracestate
        self.transport.write(b"%b\r\n%b" % (head, call.body))

    def read(self, *, on: bool) -> None:
        """Stop reading, or resume."""
        if on != self._reading and not self._closing:
            self._reading = on
            (self.transport.resume_reading if on else self.transport.pause_reading)()

    def data_received(self, data: bytes) -> None:
        flight = self._flight
        if flight is None:
            self.unasked = data[:SHOWN_BYTES]
            self.shut()  # bytes without a request: the next reply could not be told from them
            return
        sink = flight.sink
        parser = self._parser
        if sink is None:
            self.shut()
            return
        head_was_out = parser.head_done
        try:
            body = parser.feed(data)
        except ReplyError as error:
            self._lose(Loss.GARBLED, str(error) if head_was_out else f"{error}, in what begins with {data[:SHOWN_BYTES]!r}")
            return
        if not head_was_out and parser.head_done:
            sink.on_head(parser.status, parser.headers)
        if body and flight.sink is not None:
            sink.on_data(body)
        if parser.complete:
            self._finish(flight)
        if len(data) >= FULL and self._reading and not self._closing:
            take_turns(self.transport, lambda: self._reading)

    def _finish(self, flight: RelayFlight) -> None:
        self._flight = None
        flight.connection = None
        if self._parser.reusable and not self._leaving:
            self._parser.reset()
            if not self._reading:
                self.read(on=True)  # the reply ended while its caller's side was full; the next caller's is not
            self._upstream.park(self)
        else:
            self.shut()
        sink, flight.sink = flight.sink, None
        if sink is not None:
            sink.on_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._leaving = True
        self._parser.close()
        self._upstream.lost(self)
        flight = self._flight
        parser = self._parser
        if flight is None:
            return
        if parser.head_done and parser.ends_by_close and exc is None:
            self._finish(flight)
            return
        self._flight = None
        flight.connection = None
        unanswered = not parser.started
        window_s = STALE_LATE_S if self._sent_at - self.idle_since >= STALE_IDLE_S else STALE_WINDOW_S
        if unanswered and self._reused and flight.sink is not None and self._upstream.now() - self._sent_at <= window_s:
            self._upstream.resend(flight)
            return
        why = f"{type(exc).__name__}: {exc}" if exc else "closed by the engine"
        flight.lose(Loss.CUT if parser.head_done else Loss.NO_REPLY, why)

    def _lose(self, loss: Loss, detail: str) -> None:
        flight, self._flight = self._flight, None
        self.shut()
        if flight is not None:
            flight.lose(loss, detail)

    def retire(self) -> None:
        """Carry no further call: close now, or when the reply is complete. A connection that is just made carries its first one."""
        self._leaving = True
        if self._flight is None and self.idle_since:
            self.shut()

    def shut(self) -> None:
        """Close at once and without lingering, so that an engine stops generating."""
        self._closing = self._leaving = True
        self._flight = None
        self.transport.abort()
