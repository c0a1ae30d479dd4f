"""One side of a WebSocket connection after its handshake (RFC 6455): bytes in, whole text messages and bytes to write out. Sans-io.

`websockets` reads and writes the frames: masks, fragments, control frames, the closing handshake. This module joins fragments to messages,
bounds a message, and refuses binary messages. It knows nothing of sockets, of events or of who is at the other end. No extension is ever
agreed on, so no message is compressed: a small frame cannot become a large message.
"""

from typing import Any, Final, cast

from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
UNSUPPORTED: Final = 1003
NO_STATUS: Final = 1005
INVALID_DATA: Final = 1007
POLICY: Final = 1008
TOO_BIG: Final = 1009
FAILED: Final = 1011
"""Close codes (RFC 6455, 7.4.1)."""


class _Silence:
    """A logger that logs nothing."""

    def isEnabledFor(self, _level: int) -> bool:
        return False

    def debug(self, *_: object, **__: object) -> None:
        """Drop a message."""

    info = error = debug


SILENT: Final = cast(Any, _Silence())
"""The logger that `websockets` gets: at the level DEBUG the library would log frames, and frames are what callers say."""

MAX_REASON_BYTES: Final = 123
"""Longest reason of a close frame: a control frame has 125 bytes, and the code takes two."""


class WebSocketStream:
    """Messages of one connection.

    Args:
        protocol: the connection, its handshake done.
    """

    __slots__ = ("_parts", "_protocol", "closed", "text_open")

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._parts = bytearray()
        self.text_open = False
        """Whether a message has begun whose last fragment is still to come."""
        self.closed: tuple[int, str] | None = None
        """The code and reason with which the other side closed, or with which it was refused for breaking the protocol; None while open."""

    @classmethod
    def server(cls, most_bytes: int) -> "WebSocketStream":
        """The side that a client has connected to. `most_bytes` bounds a message of the client."""
        return cls(Protocol(Side.SERVER, state=State.OPEN, max_size=most_bytes, logger=SILENT))

    @property
    def is_open(self) -> bool:
        """Whether messages may still be sent."""
        return self._protocol.state is State.OPEN

    def feed(self, data: bytes) -> list[bytes]:
        """The whole text messages that end in `data`. Look at `closed` and write `out` after every call."""
        if self.closed is not None:
            return []
        self._protocol.receive_data(data)
        return self.read()

    def read(self) -> list[bytes]:
        """The messages in the bytes that the connection has got already."""
        protocol = self._protocol
        messages: list[bytes] = []
        for event in protocol.events_received():
            assert isinstance(event, Frame)  # the handshake is over
            if event.opcode is Opcode.BINARY:
                self.close(UNSUPPORTED, "Send text messages: audio goes as base64 inside of JSON events.")
                self.closed = (UNSUPPORTED, "a binary message")
                return messages
            if event.opcode in (Opcode.TEXT, Opcode.CONT):
                self.text_open = not event.fin
                if event.fin and not self._parts:
                    messages.append(bytes(event.data))
                    continue
                self._parts += event.data
                if event.fin:
                    messages.append(bytes(self._parts))
                    self._parts = bytearray()
        if self.closed is None and protocol.state is not State.OPEN:
            self.closed = _end_of(protocol.close_rcvd) if protocol.parser_exc is None else _end_of(protocol.close_sent)
        return messages

    def send(self, message: bytes) -> None:
        """Queue a text message; dropped once the connection is closing."""
        if self.is_open:
            self._protocol.send_text(message)

    def ping(self) -> None:
        """Queue a ping, which every peer has to answer."""
        if self.is_open:
            self._protocol.send_ping(b"")

    def close(self, code: int, reason: str) -> None:
        """Queue a close frame, unless one was sent; the reason is cut to what a frame can hold."""
        if self.is_open:
            text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            self._protocol.send_close(code, text)

    def out(self) -> bytes:
        """The bytes to write now. The end of the stream is not among them: whoever has the socket closes it."""
        return b"".join(self._protocol.data_to_send())


def _end_of(close: Close | None) -> tuple[int, str]:
    return (NO_STATUS, "") if close is None else (close.code, close.reason)


def passed_on(code: int) -> int:
    """The close code to send on the other connection for one that was received: some codes stand for the absence of a frame, and may not
    be sent (RFC 6455, 7.4.1)."""
    return code if code in _SENDABLE or 3000 <= code < 5000 else NORMAL if code == NO_STATUS else FAILED


_SENDABLE: Final = frozenset({NORMAL, GOING_AWAY, UNSUPPORTED, INVALID_DATA, POLICY, TOO_BIG, FAILED, 1012, 1013})
