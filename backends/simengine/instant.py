"""Instant mode: fixed answers, as cheap as a socket allows, for measuring a gateway in front of an engine.

Streams are paced by one shared tick, so that a thousand of them cost one timer.
"""

import asyncio
import time
from typing import Final

from backends.simengine.connection import SimConnection
from backends.simengine.settings import SimSettings
from backends.simengine.shapes import Ids, chat_chunk, encode, plain, plain_choice, usage, usage_chunk

WORDS: Final = "the tide turns and the gate opens while water finds its level past every stone " * 7
"""About 550 bytes, which makes a plain reply of about 0.7 KB."""

DEFAULT_EVENTS: Final = 32
TICK_S: Final = 0.004
"""Streams are served in turns this far apart; at 30 events a second that is an eighth of their gap."""


class _Paced:
    __slots__ = ("connection", "due", "left")

    def __init__(self, connection: SimConnection, due: float, left: int) -> None:
        self.connection = connection
        self.due = due
        self.left = left


class Instant:
    """Answers requests with a fixed text, without batcher or KV cache."""

    def __init__(self, settings: SimSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rate = settings.event_rate
        self._stamp = settings.stamp
        head = Ids("chatcmpl-instant", 1_700_000_000, settings.models[0])
        said = {"message": {"role": "assistant", "content": WORDS}}
        body = encode(plain(head, "chat", [plain_choice(0, said, "stop")], usage(64, 128, 0)))
        self._plain = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        self._first = _event(chat_chunk(head, 0, {"role": "assistant", "content": ""}, None))
        text = _event(chat_chunk(head, 0, {"content": " gate"}, None))
        self._text = text
        self._before, _, self._after = text.partition(b" gate")
        self._last = _event(chat_chunk(head, 0, {}, "stop")) + _event(usage_chunk(head, "chat", usage(64, 128, 0))) + b"data: [DONE]\n\n"
        self._streams: list[_Paced] = []
        self._ticking = False

    def answer(self, connection: SimConnection) -> None:
        """Answer one inference request; only `stream` and `max_tokens` of its body are read."""
        body = connection.body
        if b'"stream":true' not in body and b'"stream": true' not in body:
            connection.transport.write(self._plain)
            return
        events = _max_tokens(body)
        connection.start_stream()
        if self._rate <= 0:
            framed = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in (self._first, *[self._text] * events, self._last))
            connection.transport.write(framed + b"0\r\n\r\n")
            return
        connection.chunk(self._first)
        now = self._loop.time()
        self._streams.append(_Paced(connection, now + 1.0 / self._rate, events))
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        text = self._text
        if self._stamp:
            text = b"%b%d%b" % (self._before, time.monotonic_ns(), self._after)
        gap = 1.0 / self._rate
        going = []
        for stream in self._streams:
            connection = stream.connection
            if connection.transport.is_closing():
                continue
            if now >= stream.due:
                stream.due += gap
                stream.left -= 1
                connection.chunk(text if stream.left > 0 else text + self._last)
                if stream.left <= 0:
                    connection.end_stream()
                    continue
            going.append(stream)
        self._streams = going
        if going:
            self._loop.call_later(TICK_S, self._tick)
        else:
            self._ticking = False


def _event(chunk: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % encode(chunk)


def _max_tokens(body: bytes) -> int:
    at = body.find(b'"max_tokens":')
    if at < 0:
        return DEFAULT_EVENTS
    digits = body[at + 13 : at + 24].lstrip().split(b",")[0].split(b"}")[0].strip()
    return int(digits) if digits.isdigit() else DEFAULT_EVENTS
