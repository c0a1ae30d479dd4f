"""The callers of a world: each sends one request over a connection of its own, behaves well or badly, and keeps what it saw."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from backends.clients.http1 import ReplyError, ReplyParser
from backends.simengine.reading import chat_text
from backends.simengine.shapes import natural_length, tokens_of, words
from tests.world.hosts import Host
from tests.world.loop import VirtualLoop

MODEL = "sim"


@dataclass(frozen=True)
class Manners:
    """How a caller behaves."""

    stream: bool = True
    usage: bool = False
    max_tokens: int = 8
    choices: int = 1
    leaves_after_s: float | None = None
    leaves_after_bytes: int | None = None
    body_pieces: int = 1
    body_pause_s: float = 0.0
    reads_until_bytes: int | None = None
    """Stops reading then, for `stalls_s`."""
    stalls_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    """Further ones: a class, how long it waits, that it asks again."""


class Ask:
    """One request, and afterwards what became of it."""

    def __init__(self, number: int, tenant: str, key: str, prompt: str, manners: Manners) -> None:
        self.id = f"ask-{number}"
        self.tenant, self.key, self.manners = tenant, key, manners
        self.prompt = prompt
        self.messages = [{"role": "system", "content": "All of you share this beginning. " * 4}, {"role": "user", "content": prompt}]
        self.gateway = ""
        self.began_at = self.ended_at = 0.0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.whole = False
        """The reply came to its end as its framing says."""
        self.over = False
        self.left = False
        """The caller went away by itself."""
        self.refused_to_connect = False

    @property
    def request(self) -> bytes:
        wanted: dict[str, Any] = {"model": MODEL, "messages": self.messages, "max_tokens": self.manners.max_tokens}
        if self.manners.stream:
            wanted["stream"] = True
            if self.manners.usage:
                wanted["stream_options"] = {"include_usage": True}
        if self.manners.choices > 1:
            wanted["n"] = self.manners.choices
        return json.dumps(wanted).encode()

    def expected(self, choice: int = 0) -> list[str]:
        """The words that any engine answers with, whole."""
        prompt = tokens_of(chat_text(self.messages))
        length = min(self.manners.max_tokens, natural_length(prompt, MODEL, choice))
        answer = words(prompt, MODEL, choice)
        return [next(answer) for _ in range(length)]


class Caller(asyncio.Protocol):
    """Sends one Ask and reads its reply."""

    def __init__(self, ask: Ask, loop: VirtualLoop, done: "asyncio.Future[None]") -> None:
        self._ask, self._loop, self._done = ask, loop, done
        self._parser = ReplyParser()
        self._stalled = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        ask, manners = self._ask, self._ask.manners
        body = ask.request
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {ask.gateway}\r\nauthorization: Bearer {ask.key}\r\nx-request-id: {ask.id}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        ).encode()
        head += "".join(f"{name}: {value}\r\n" for name, value in manners.headers).encode() + b"\r\n"
        size = -(-len(body) // manners.body_pieces)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        self.transport.write(head + pieces[0])
        for n, piece in enumerate(pieces[1:], 1):
            self._loop.call_later(n * manners.body_pause_s, self.transport.write, piece)
        if manners.leaves_after_s is not None:
            self._loop.call_later(manners.leaves_after_s, self._leave)

    def data_received(self, data: bytes) -> None:
        ask, manners = self._ask, self._ask.manners
        try:
            ask.body += self._parser.feed(data)
        except ReplyError as error:
            raise AssertionError(f"{ask.id}: no HTTP reply: {error}") from None
        if self._parser.head_done:
            ask.status, ask.headers = self._parser.status, dict(self._parser.headers)
        if self._parser.complete:
            ask.whole = True
            self.transport.close()
            self._end()
        elif manners.leaves_after_bytes is not None and len(ask.body) >= manners.leaves_after_bytes:
            self._leave()
        elif manners.reads_until_bytes is not None and not self._stalled and len(ask.body) >= manners.reads_until_bytes:
            self._stalled = True
            self.transport.pause_reading()
            self._loop.call_later(manners.stalls_s, self.transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parser.head_done and self._parser.ends_by_close and exc is None:
            self._ask.whole = True
        self._end()

    def _leave(self) -> None:
        if not self._done.done():
            self._ask.left = True
            self.transport.abort()
            self._end()

    def _end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def send(ask: Ask, gateway: str, loop: VirtualLoop, port: int = 8080) -> None:
    """From the connection to the end."""
    ask.gateway, ask.began_at = gateway, loop.now
    done = loop.create_future()
    try:
        await loop.create_connection(lambda: Caller(ask, loop, done), gateway, port)
    except OSError:
        ask.refused_to_connect = True
    else:
        await done
    ask.over, ask.ended_at = True, loop.now


def callers_host() -> Host:
    """All callers are one host: none of them ever loses its power."""
    return Host("callers")
