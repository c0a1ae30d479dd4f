"""A connection to the simulated engine: HTTP/1.1 on the socket itself, because the faults need it."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import httptools

from backends.simengine.faults import FaultRule

Handler = Callable[["SimConnection"], None]


class SimConnection(asyncio.Protocol):
    """One connection with one request at a time; `handler` is called when a request is complete. `connections` has it while it is open."""

    def __init__(self, handler: Handler, connections: dict["SimConnection", None]) -> None:
        self._handler = handler
        self._connections = connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport
        self.headers: dict[bytes, bytes] = {}
        self.target = b""
        self.body = b""
        self.fault: FaultRule | None = None
        self.on_gone: Callable[[], None] | None = None
        """Called when the caller leaves while an answer is under way."""
        self.chunked = True
        self.upgrading = False
        """Whether the request offers another protocol, so that the parser stops behind its head."""
        self.tunnel: Callable[[bytes], None] | None = None
        """Takes the caller's bytes once the connection is a session's."""

    @property
    def method(self) -> str:
        """The request's method."""
        method: bytes = self._parser.get_method()
        return method.decode()

    @property
    def path(self) -> str:
        """The request's path."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections[self] = None
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel(data)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self.upgrading:
                return  # the handler has answered, or never will
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self, None)
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def on_message_begin(self) -> None:
        """A request begins."""
        self.headers = {}
        self.target = b""
        self.body = b""
        self.fault = None
        self.chunked = True

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """The request is complete."""
        self.upgrading = b"upgrade" in self.headers
        self._handler(self)

    # --- replies --------------------------------------------------------------------------------------------------

    def reply(self, status: int, body: bytes, content_type: str = "application/json", extra: str = "") -> None:
        """Send a whole reply in one write, with the connection's fault if it concerns replies."""
        name = self.fault.name if self.fault else ""
        length = len(body) + (100 if name == "plain_truncated" else 0)
        framing = "connection: close\r\n" if name == "connection_close_framing" else f"content-length: {length}\r\n"
        if name == "huge_headers":
            extra += f"x-filler: {'x' * 100_000}\r\n"
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\ncontent-type: {content_type}\r\n{framing}{extra}\r\n"
        self.on_gone = None
        self.transport.write(head.encode() + body)
        if name in ("plain_truncated", "connection_close_framing", "close_idle"):
            self.transport.close()

    def start_stream(self, content_type: str = "text/event-stream; charset=utf-8", extra: str = "") -> None:
        """Send the head of a streamed reply."""
        name = self.fault.name if self.fault else ""
        self.chunked = name != "connection_close_framing"
        framing = "transfer-encoding: chunked\r\n" if self.chunked else "connection: close\r\n"
        if name == "huge_headers":
            extra += f"x-filler: {'x' * 100_000}\r\n"
        self.transport.write(f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n{framing}{extra}\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """Send a piece of a streamed reply in one write."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end_stream(self) -> None:
        """Send the end of a streamed reply."""
        self.on_gone = None
        if self.chunked:
            self.transport.write(b"0\r\n\r\n")
        if not self.chunked or (self.fault and self.fault.name == "close_idle"):
            self.transport.close()

    def close(self) -> None:
        """Close the connection in order."""
        self.on_gone = None
        self.transport.close()

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.on_gone = None
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
