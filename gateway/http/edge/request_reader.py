"""The reading half of a caller's connection: the callbacks of llhttp, their checks, and the Exchange that they make."""

from math import inf
from typing import TYPE_CHECKING, Any, cast

import httptools

from domain.faults import Fault, Kind
from gateway.http.edge.door import Connections
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import ONCE, checked_head, size_of

if TYPE_CHECKING:
    from gateway.http.edge.connection import EdgeConnection


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
            self._read_bytes > limits.max_header_bytes and size_of(headers) > limits.max_header_bytes
        ):
            allowed = f"{limits.max_headers} lines and {limits.max_header_bytes} bytes"
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
        self._exchange = Exchange(cast("EdgeConnection", self), head)
        self.deadline = inf
        if head.content_length is not None and head.content_length > limits.max_body_bytes:
            self._violate(Kind.BODY_TOO_LARGE, f"The body has {head.content_length} bytes; {limits.max_body_bytes} are allowed.")

    def on_body(self, data: bytes) -> None:
        """Collect body bytes; they are counted, whatever length was declared."""
        exchange = self._exchange
        if self._ignore or exchange is None or exchange.refusal is not None or self._violation is not None:
            return
        if exchange.body_bytes + len(data) > self.connections.limits.max_body_bytes:
            self._violate(Kind.BODY_TOO_LARGE, f"The body has more than the {self.connections.limits.max_body_bytes} bytes allowed.")
            return
        exchange.take(data)

    def on_message_complete(self) -> None:
        """Hand the complete body over."""
        exchange = self._exchange
        if self._ignore or exchange is None or self._violation is not None or exchange.complete:
            return
        self.deadline = inf
        exchange.body_is_over(None)

    def _violate(self, kind: Kind, message: str) -> None:
        if self._violation is None:
            self._violation = Fault(kind, message)
