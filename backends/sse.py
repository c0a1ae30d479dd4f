"""Server-sent events, sans-io: bytes in any chunking become the payloads of whole events.

Follows the event-stream grammar of the HTML standard (section 9.2.6) as far as inference APIs use it: `data` fields are
joined by newlines, comments and other fields are passed over, lines end in LF, CRLF or CR, a leading byte order mark is
dropped. The meaning of a payload is not known here.
"""

import re
from typing import Final

import msgspec

MAX_EVENT_BYTES: Final = 1024 * 1024
"""Largest event held while it is incomplete. Engines send 0.2 to 3 KiB per event; log probabilities reach tens of KiB."""

# A line end is atomic: CRLF must never be taken for two ends by backtracking.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event grew past `MAX_EVENT_BYTES` without ending."""


class EventSplitter(msgspec.Struct, eq=False):
    """Splits a stream into the payloads of its events. The payloads do not depend on how the stream was cut into chunks."""

    tail: bytes = b""
    """Bytes of an unfinished event."""
    at_start: bool = True
    skip_lf: bool = False
    between: bool = False
    """Whether no bytes are held, so that the next byte begins an event."""

    def lone(self, data: bytes) -> bytes | None:
        """The payload if `data` is exactly one event in its usual form, `data: …` and a blank line, as one read nearly always is. None for
        all other data, which is not consumed then: pass it to `feed`."""
        if self.between and len(data) <= MAX_EVENT_BYTES and data.endswith(b"\n\n") and data.startswith(b"data: "):
            lines = data.splitlines()
            if len(lines) == 2:
                return lines[0][6:]
        return None

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the events that `data` completes, in order; events without a `data` field have none.

        Raises:
            EventTooLarge: an event, finished or not, is over `MAX_EVENT_BYTES`.
        """
        if self.between and data.endswith(b"\n\n") and b"\r" not in data and len(data) <= MAX_EVENT_BYTES:
            return [p for block in data[:-2].split(b"\n\n") if (p := payload_of(block)) is not None]
        return self._feed_any(data)

    def _feed_any(self, data: bytes) -> list[bytes]:
        if self.skip_lf:
            self.skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        data = self.tail + data if self.tail else data
        if self.at_start:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self.tail = data
                return []
            data = data.removeprefix(_BOM)
            self.at_start = False
        payloads = []
        begin = 0
        for end in _BLANK_LINE.finditer(data):
            if end.start() < begin:
                continue
            if end.end() == len(data) and data.endswith(b"\r"):
                # a lone CR ends the line already; should its LF follow, it belongs to this line end
                self.skip_lf = True
            payload = payload_of(data[begin : end.start()])
            if payload is not None:
                if len(payload) > MAX_EVENT_BYTES:
                    raise EventTooLarge(f"event over {MAX_EVENT_BYTES} bytes")
                payloads.append(payload)
            begin = end.end()
        self.tail = data[begin:]
        if len(self.tail) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"event over {MAX_EVENT_BYTES} bytes")
        self.between = not (self.tail or self.skip_lf)
        return payloads

    @property
    def pending(self) -> bool:
        """Whether an unfinished event is held; at the end of a stream that means that the stream was cut."""
        return bool(self.tail.strip(b"\r\n"))


def payload_of(block: bytes) -> bytes | None:
    """The `data` of one event's lines, joined by newlines; None when it has no data field (a comment, say)."""
    if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
        return block[6:]
    data: list[bytes] = []
    for line in _LINE_END.split(block):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            data.append(b"")
    return b"\n".join(data) if data else None
