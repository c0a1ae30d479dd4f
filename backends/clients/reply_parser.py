"""HTTP/1.1 replies, sans-io: llhttp parses the grammar, this module keeps the limits and collects the body bytes of each read.

One parser serves one connection, and is reset between replies.
"""

from typing import Any, Final

import httptools

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
