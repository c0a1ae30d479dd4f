"""A TCP proxy on loopback that stands between a gateway and an engine and does to their bytes what networks do.

What it does is told with `proxy.fault = drip(1, 10.0)` and can be changed while connections run. A connection that has lost bytes
stays lost, as a message with a hole in it can never be whole again.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

Kind = Literal["pass", "delay", "drip", "split", "cut", "reset", "swallow", "deaf"]

BUFFER: Final = 4096
"""Bytes taken at a time; little, so that one that stops reading is felt at once."""


class Fault(msgspec.Struct, frozen=True):
    """What is done to replies; the last two to both directions."""

    kind: Kind = "pass"
    bytes: int = 0
    every_s: float = 0.0


PASS: Final = Fault()


def delay(wait_s: float) -> Fault:
    """Every piece of a reply waits."""
    return Fault("delay", every_s=wait_s)


def drip(size: int, every_s: float) -> Fault:
    """Replies come a few bytes at a time."""
    return Fault("drip", size, every_s)


def split(at: int) -> Fault:
    """Replies come in two pieces, the first of which has this many bytes."""
    return Fault("split", at)


def cut(after: int = 0) -> Fault:
    """Replies end after this many bytes with a FIN, as when a process ends."""
    return Fault("cut", after)


def reset(after: int = 0) -> Fault:
    """Replies end after this many bytes with a RST, as when a machine has forgotten the connection."""
    return Fault("reset", after)


def black_hole() -> Fault:
    """Connections are taken, what is sent is taken, and nothing ever comes back; one that runs is half-open from then on: the gateway
    believes that the engine is there, and is not told when it ends."""
    return Fault("swallow")


def deaf() -> Fault:
    """Connections are taken, but nothing that is sent is read any more; it is read after all when the fault ends."""
    return Fault("deaf")


class Link:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.engine: asyncio.StreamWriter | None = None
        self.replied = 0
        """Reply bytes since the last request byte."""
        self.lost = False

    def end(self, *, by_reset: bool = False) -> None:
        """Close both sides, the engine's always as if the gateway had gone."""
        if by_reset:
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        for side in (self.writer, self.engine):
            if side is not None:
                side.close()


class Proxy:
    """See the module; made by `proxied`."""

    def __init__(self, engine_url: str) -> None:
        parts = urlsplit(engine_url)
        self._engine = (parts.hostname or "", parts.port or 80)
        self._fault = PASS
        self._changed = asyncio.Event()
        self.links: set[Link] = set()
        self.accepted = self.ended = 0
        """Connections taken, and those that a fault ended."""
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def fault(self) -> Fault:
        """What is done to connections now."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        self._changed.set()
        self._changed = asyncio.Event()

    def reset_all(self) -> None:
        """Reset every connection there is."""
        for link in list(self.links):
            link.end(by_reset=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        link = Link(reader, writer)
        self.links.add(link)
        self.accepted += 1
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self._carry(link)
        self.links.discard(link)
        link.end()

    async def _carry(self, link: Link) -> None:
        if self._fault.kind == "swallow":
            link.lost = True
            while await link.reader.read(BUFFER):
                pass
            return
        from_engine, link.engine = await asyncio.open_connection(*self._engine, limit=BUFFER)
        async with asyncio.TaskGroup() as both:
            replies = both.create_task(self._replies(link, from_engine))
            await self._requests(link)
            replies.cancel()

    async def _requests(self, link: Link) -> None:
        assert link.engine is not None
        while data := await link.reader.read(BUFFER):
            if not link.lost and (await self._now()).kind != "swallow":
                link.replied = 0
                link.engine.write(data)
                with contextlib.suppress(ConnectionError):
                    await link.engine.drain()
            else:
                link.lost = True

    async def _replies(self, link: Link, from_engine: asyncio.StreamReader) -> None:
        while data := await self._taken(from_engine):
            while data and not link.lost:
                fault = await self._now()
                size = len(data)
                if fault.kind == "swallow":
                    link.lost = True
                    break
                if fault.kind == "drip":
                    size = fault.bytes
                elif fault.kind in ("split", "cut", "reset") and (fault.kind != "split" or link.replied < fault.bytes):
                    size = max(0, fault.bytes - link.replied)
                link.writer.write(data[:size])
                await link.writer.drain()
                data, link.replied = data[size:], link.replied + len(data[:size])
                if fault.kind in ("cut", "reset") and link.replied >= fault.bytes:
                    self.ended += 1
                    link.end(by_reset=fault.kind == "reset")
                    return
                if fault.kind in ("delay", "drip", "split"):
                    await self._unless_changed(fault.every_s)
        if not link.lost:
            link.end()

    async def _taken(self, from_engine: asyncio.StreamReader) -> bytes:
        try:
            return await from_engine.read(BUFFER)
        except ConnectionError:
            return b""

    async def _now(self) -> Fault:
        """The fault of now, once it lets anything through."""
        while self._fault.kind == "deaf":
            await self._changed.wait()
        return self._fault

    async def _unless_changed(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, 0.001)):  # the other side shall read what was sent by itself
                await self._changed.wait()


@asynccontextmanager
async def proxied(engine_url: str) -> AsyncIterator[Proxy]:
    """A running `Proxy` on a free loopback port in front of an engine."""
    proxy = Proxy(engine_url)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=BUFFER)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        for link in list(proxy.links):
            link.end()
        await asyncio.sleep(0.01)
