"""One request and its reply on a caller's connection: all that the lifecycle sees of the edge.

Reads the body, writes the reply in one of three shapes (whole, streamed, cut), and tells its Listener that the caller
left, reads too slowly, or reads again. The transport stays in `connection.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.http.edge.body_size import body_too_large, free_body, reserve_size
from gateway.http.edge.content_coding import unpacked
from gateway.http.edge.head import RequestHead
from gateway.http.edge.translation import Translation

if TYPE_CHECKING:
    from gateway.http.edge.connection import EdgeConnection

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM_BUFFER_BYTES: Final = 512 * 1024
"""Bytes of a body handed on as it arrives at which reading pauses: two reads of the transport."""
AFTER_COMMENT: Final = b":\n\n"
"""An empty SSE comment, which the first event after a comment begins with. Clients exist that strip each read of white space before they
look for the blank line behind an event (`vllm bench serve`): to them a comment that came alone has no end, and all that follows belongs to
it. In one read with this one, the blank line stands inside the read."""

REASONS: Final = {
    200: b"OK",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    529: b"Overloaded",
}

_STATUS_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in REASONS.items()}

Header = tuple[bytes, bytes]


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they stand in a head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class Listener:
    """Hears of the caller's connection while a reply is under way. Does nothing by itself."""

    def gone(self) -> None:
        """The caller's connection is lost; nothing can be written any more."""

    def full(self) -> None:
        """The caller reads too slowly; stop producing."""

    def drained(self) -> None:
        """There is room again."""

    def cut(self) -> None:
        """The caller has read too slowly, and is cut off before anything more is written."""


NOBODY: Final = Listener()


class OwnRequest(msgspec.Struct, frozen=True):
    """Says of a request that the gateway itself makes, a line of a batch or a question of the judge, for whom it is made."""

    caller: Caller
    price_percent: int = 100
    """What the request costs, in percent of its model's price."""
    pool: str = ""
    """The pool that is to answer, an arm of a rollout that is in force; empty for the model's own."""


class Exchange(msgspec.Struct, eq=False):
    """One request with its reply. Created when the head is complete, over when the reply is. A Struct, so that creating it costs no
    Python call."""

    _connection: "EdgeConnection"
    head: RequestHead
    client: str = ""
    """The caller's address; empty on a socket that has none."""
    received: bytes | bytearray = b""
    """The body so far; bytes where it came in one piece. Of a body that is handed on as it arrives, the part that waits."""
    streams: bool = False
    """Whether the body is handed on as it arrives (`pieces`)."""
    handed_on: int = 0
    """Bytes of the body that were handed on."""
    waiter: asyncio.Future[None] | None = None
    """Set once the body is complete or refused; None while nothing awaits the body."""
    complete: bool = False
    """The request body has arrived whole."""
    refusal: Fault | None = None
    """Why the body will never be complete."""
    started: bool = False
    """A reply head is out, so the status is fixed."""
    finished: bool = False
    """The reply is over, well or badly."""
    gone: bool = False
    """The caller's connection is lost."""
    listener: Listener = NOBODY
    task: asyncio.Task[None] | None = None
    """The coroutine serving this; held here because the loop keeps only weak references to tasks."""
    body_most: int = 0
    """The most bytes that the body may have without a further reservation; 0 until its caller is known."""
    body_allowed: int = 0
    """The most bytes that the caller's policy allows; 0 until its caller is known."""
    body_reserved: int = 0
    """The bytes reserved in `Connections.large_bodies` for a body above the usual size."""
    body_tenant: str = ""
    """The tenant that they are reserved for; empty while it is not known."""
    written: int = 0
    """Reply bytes handed to the connection, framing not counted."""
    commented: bool = False
    """A comment was written last, so the next event begins with `AFTER_COMMENT`."""
    translation: Translation | None = None
    """The caller's API where it is not that of the reply that is written here."""
    own: OwnRequest | None = None
    """Set where the gateway itself makes the request; None for every request that comes over a connection."""
    to_background: bool = False
    """Whether the caller is to be answered before an engine works for the request (`gateway.request.run_in_background`)."""
    unsent: Callable[[], None] | None = None
    """Sends the end of a reply that waits until what it tells of is stored; `release` does."""
    _head_out: bytes | None = None
    """The head of a streamed reply until the first bytes behind it are written."""

    @property
    def from_picker(self) -> bool:
        """Whether the request comes over a connection from a proxy whose endpoint picker may name engines."""
        connection = self._connection
        pickers = connection.connections.pickers
        return pickers is not None and pickers.trusts(connection.peer)

    @property
    def draining(self) -> bool:
        """Whether the worker drains: it accepts a few connections more, and no further requests on them."""
        return self._connection.connections.draining

    # --- the request's body ---------------------------------------------------------------------------------------

    async def body(self, allowed: Collection[int | None] = (), tenant: str = "") -> bytes:
        """The whole request body, unpacked where it came compressed.

        Args:
            allowed: the sizes in bytes that the caller's policy allows, of which the largest counts; None in it, and none at all, stands
                for the usual size.
            tenant: the caller's, whose share of the room for large bodies the body takes.

        Raises:
            Fault: BODY_TOO_LARGE, REQUEST_TIMEOUT, MALFORMED_HTTP or CLIENT_GONE, when it will not come; OVERLOADED where too many large
                bodies are held already; BODY_TOO_LARGE or INVALID_JSON, when it cannot be unpacked.
        """
        if self.refusal is None:
            self.body_tenant = tenant
            self._connection.allow_body(self, allowed)
        if not self.complete and self.refusal is None:
            self._continue()
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self.refusal is not None:
            raise self.refusal
        if self.head.coding:
            await self._unpack(allowed)
        return self.received if isinstance(self.received, bytes) else bytes(self.received)

    def _continue(self) -> None:
        """Tell a caller that waits for it to send the body."""
        if self.head.headers.get(b"expect") and not self._connection.speaks_1_0:
            self._connection.write(CONTINUE)

    async def pieces(self, most: int, tenant: str) -> AsyncIterator[bytes]:
        """The request body as it arrives. Little of it is in memory at once: while `STREAM_BUFFER_BYTES` wait, nothing more is read, so a
        caller cannot send faster than the pieces are taken. A compressed body is read and unpacked whole, within the usual bounds.

        Args:
            most: the most bytes that the body may have. The taker counts them; here they bound the time that the body may take.
            tenant: as for `body`.

        Raises:
            Fault: those of `body`.
        """
        if self.head.coding:
            yield await self.body((most,), tenant)
            return
        if self.refusal is None:
            self.body_tenant = tenant
            self._connection.stream_body(self, most)
        if not self.complete and self.refusal is None and not self.received:
            self._continue()
        while self.refusal is None:
            piece, self.received = self.received, b""
            if piece:
                self.handed_on += len(piece)
                self._connection.go_on_reading()
                yield piece if isinstance(piece, bytes) else bytes(piece)
            elif self.complete:
                return
            else:
                self.waiter = asyncio.get_running_loop().create_future()
                await self.waiter
        raise self.refusal

    async def _unpack(self, allowed: Collection[int | None]) -> None:
        """Unpack the body, and reserve what it becomes above the usual size."""
        connections = self._connection.connections
        most = connections.limits.body_most(allowed)
        self.received = await unpacked(self.received, self.head.coding, most, self._reserve_unpacked)
        self.head = msgspec.structs.replace(self.head, coding="")
        if not self.gone:  # else everything is given back already
            self._free_body()
            reserve_size(self, len(self.received), connections)

    def _reserve_unpacked(self, size: int) -> None:
        if self.gone:  # everything is given back already
            return
        refusal = reserve_size(self, max(size, self.body_reserved), self._connection.connections)
        if refusal is not None:
            raise refusal

    def _free_body(self) -> None:
        if self.body_reserved:
            free_body(self, self._connection.connections)

    def most_bytes(self, allowed: int | None) -> int:
        """The largest request of a caller whose policy allows this size; None for the usual one."""
        return self._connection.connections.limits.body_most((allowed,))

    def check_body(self, size: int, allowed: int | None) -> None:
        """Refuse a body that came whole and is larger than a narrower policy allows, in bytes; None for the usual size.

        Raises:
            Fault: BODY_TOO_LARGE.
        """
        if size > (most := self.most_bytes(allowed)):
            raise body_too_large(size, most)

    def grow(self, size: int, allowed: int | None) -> None:
        """Count a request that has become larger than its body, as images were fetched for it.

        Raises:
            Fault: BODY_TOO_LARGE, or OVERLOADED where too many large requests are held already.
        """
        self.check_body(size, allowed)
        refusal = reserve_size(self, size, self._connection.connections)
        if refusal is not None:
            raise refusal

    def take(self, data: bytes) -> None:
        """Append a further piece of the body."""
        if isinstance(self.received, bytes):
            self.received = bytearray(self.received)
        self.received += data

    def take_streamed(self, data: bytes) -> None:
        """Append a further piece of a body that is handed on as it arrives."""
        if self.received:
            self.take(data)
        else:
            self.received = data
        if len(self.received) >= STREAM_BUFFER_BYTES:
            self._connection.hold_body()
        self._wake()

    def body_is_over(self, refusal: Fault | None) -> None:
        """The body is complete (None) or will never be."""
        if refusal is None:
            self.complete = True
        else:
            self.refusal = refusal
            self.received = b""
        self._wake()

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- the reply ------------------------------------------------------------------------------------------------

    def reply(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer in one write and be done. HEAD requests get the head alone.

        Args:
            headers: whole header lines, each ended by CRLF (`header_lines`); length, date and connection are added.
        """
        connection = self._connection
        if self.translation is not None:
            headers = self.translation.headers(headers)
            if status == 200:
                body = self.translation.plain(body)
                if self.translation.keeps:
                    self._hold(partial(self.reply, 200, headers, body))
                    return
        close = connection.closes_after(self)
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        if self.head.method == "HEAD":
            body = b""
        self.written += len(body)
        self.started = True
        end = b"connection: close\r\n\r\n" if close else b"\r\n"
        connection.write(b"".join((_STATUS_LINES[status], connection.connections.date_line, headers, length, end, body)))
        self._finish(close=close)

    def start(self, headers: bytes) -> None:
        """Begin a streamed 200; the head leaves together with the first bytes written. `headers` as for `reply`."""
        connection = self._connection
        if self.translation is not None:
            headers = self.translation.headers(headers)
        framing = b"transfer-encoding: chunked\r\n" if self.chunked else b""
        end = b"connection: close\r\n\r\n" if connection.closes_after(self) else b"\r\n"
        self._head_out = b"%b%b%b%b%b" % (_STATUS_LINES[200], connection.connections.date_line, headers, framing, end)
        self.started = True

    @property
    def chunked(self) -> bool:
        """Whether a streamed reply is chunked; an HTTP/1.0 caller gets it unframed, ended by close."""
        return not self._connection.speaks_1_0

    def write(self, data: bytes) -> None:
        """Send one piece of a streamed reply."""
        if self.translation is not None:
            data = self.translation.feed(data)
            if not data:
                return  # it becomes an event together with what comes behind it
        self._send(data)

    def comment(self, data: bytes) -> None:
        """Send an SSE comment between two events, which is the same in every caller's API."""
        self._send(data)
        self.commented = True

    def end_broken(self, event: bytes) -> None:
        """Send the event that says why a streamed reply failed, and end it as `cut` does."""
        self._send(AFTER_COMMENT + event if self.commented else event)
        self.cut()

    def _send(self, data: bytes) -> None:
        size = len(data)
        self.written += size
        connection = self._connection
        framed = data if connection.speaks_1_0 else b"%x\r\n%b\r\n" % (size, data)
        if self._head_out is not None:
            framed, self._head_out = self._head_out + framed, None
        connection.write(framed)

    def _hold(self, unsent: Callable[[], None]) -> None:
        """Hold the end of the reply back. Whoever made the reply is done, and hears no more of the caller."""
        self.unsent = unsent
        self.listener = NOBODY

    def release(self) -> None:
        """Send the end of the reply that was held back: what it tells of is stored."""
        unsent, translation = self.unsent, self.translation
        assert unsent is not None
        assert translation is not None
        self.unsent = None
        if self.gone:
            self.abandon()
            return
        if last := translation.released():
            self._send(last)
        self.translation = None  # what is left to send is translated
        unsent()

    def end(self) -> None:
        """End a streamed reply well."""
        if self.translation is not None and self.translation.keeps:
            self._hold(self.end)
            return
        last = b"0\r\n\r\n" if self.chunked else b""
        if self._head_out is not None:
            last, self._head_out = self._head_out + last, None
        if last:
            self._connection.write(last)
        self._finish(close=self._connection.closes_after(self) or not self.chunked)

    def cut(self) -> None:
        """End a streamed reply badly: no final chunk, connection closed, so that even a naive reader sees the failure."""
        if self._head_out is not None:
            self._connection.write(self._head_out)
            self._head_out = None
        self._finish(close=True)

    def abandon(self) -> None:
        """Drop the connection without another byte."""
        self._free_body()
        self.finished = True
        self.listener = NOBODY
        self._connection.abort()

    def _finish(self, *, close: bool) -> None:
        if self.body_reserved:
            self._free_body()
        self.finished = True
        self.listener = NOBODY
        self._connection.exchange_over(close=close)

    # --- a session ------------------------------------------------------------------------------------------------

    def upgrade(self, headers: bytes, tunnel: Callable[[bytes], None]) -> bool:
        """Answer the handshake of a WebSocket with a 101, and hand the caller's further bytes to `tunnel`. False where bytes came before
        the answer: they may be of another request.

        Args:
            headers: as for `reply`.
        """
        connection = self._connection
        fits = connection.upgrade(tunnel)
        if fits:
            connection.write(b"HTTP/1.1 101 Switching Protocols\r\n%b%b\r\n" % (connection.connections.date_line, headers))
            self.started = True
        return fits

    def send(self, frames: bytes) -> None:
        """Send frames of a session."""
        self.written += len(frames)
        self._connection.write(frames)

    def hold(self) -> None:
        """Read no more from the caller, until `go_on`."""
        self._connection.hold_reading()

    def go_on(self) -> None:
        """Read from the caller again."""
        self._connection.go_on_reading()

    def hang_up(self) -> None:
        """End a session: what was written is sent, and the connection closes."""
        self.finished = True
        self.listener = NOBODY
        self._connection.hang_up()

    # --- the caller's connection ----------------------------------------------------------------------------------

    def connection_gone(self) -> None:
        """The caller left."""
        self.gone = True
        self._free_body()
        if not self.complete and self.refusal is None:
            self.body_is_over(Fault(Kind.CLIENT_GONE, "The caller closed the connection before the request was complete."))
        self.listener.gone()
