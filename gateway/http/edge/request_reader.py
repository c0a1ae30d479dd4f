"""The reading half of a caller's connection: llhttp's callbacks, what they check, and the Exchange they make."""

from math import inf
from typing import TYPE_CHECKING, Any, cast

import httptools

from domain.faults import Fault, Kind
from gateway.http.edge.door import Door
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import ONCE, checked_head, size_of

if TYPE_CHECKING:
    from gateway.http.edge.connection import EdgeConnection


class RequestReader:
    """One request at a time; bytes behind it are never looked at. `deadline` is when `Door.sweep` should look again."""

    __slots__ = ("_close_after", "_exchange", "_headers", "_ignore", "_odd_lines", "_parser", "_read_bytes", "_target", "_violation",
                 "deadline", "door", "speaks_1_0")  # fmt: skip

    def __init__(self, door: Door) -> None:
        self.door = door
        self._parser: Any = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._ignore = self._close_after = False
        self._violation: Fault | None = None
        self._read_bytes = 0
        self.speaks_1_0 = False
        self.deadline: float | None = inf
        """When the sweep should look here; None: a phase began, and the next sweep sets its deadline."""
        self._clear()

    def _clear(self) -> None:
        """Forget the head read so far."""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._odd_lines = 0

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
        if self._odd_lines > self.door.limits.max_headers:
            self._violate(Kind.HEADERS_TOO_LARGE, f"A request may have {self.door.limits.max_headers} header lines.")
        elif self._exchange is None:
            if name in ONCE:
                self._violate(Kind.MALFORMED_HTTP, f"The header {name.decode('ascii')!r} may be sent only once.")
            self._headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        """The head is complete: check it and open the exchange."""
        if self._ignore or self._violation is not None:
            return
        parser, limits, headers = self._parser, self.door.limits, self._headers
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
                hosts=self.door.hosts,
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
        """Body bytes, counted whatever was declared."""
        exchange = self._exchange
        if self._ignore or exchange is None or exchange.refusal is not None or self._violation is not None:
            return
        if exchange.body_bytes + len(data) > self.door.limits.max_body_bytes:
            self._violate(Kind.BODY_TOO_LARGE, f"The body has more than the {self.door.limits.max_body_bytes} bytes allowed.")
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
