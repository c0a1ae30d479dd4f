"""A TCP server that plays a script per connection: raw bytes out, pauses, resets. Shipped beside the tests that need a
peer worse than any real engine; `backends.simengine` is the polite one."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Peer:
    """One accepted connection, with what was read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.eof = asyncio.Event()
        self.received = b""

    async def request(self) -> bytes:
        """The next whole request (head and body by its content-length); b"" when the client closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.eof.set()
            return b""
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        body = await self.reader.readexactly(length)
        self.received = head + body
        return self.received

    async def send(self, data: bytes) -> None:
        """Write and flush."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def wait_closed_by_client(self) -> None:
        """Until the client's end closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.eof.set()


Script = Callable[[Peer], Awaitable[None]]


class ScriptedServer:
    """Runs the n-th script on the n-th connection, the last one for all later ones."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.peers: list[Peer] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Play the script of this connection."""
        peer = Peer(reader, writer)
        self.peers.append(peer)
        script = self._scripts[min(len(self.peers), len(self._scripts)) - 1]
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(peer)
        writer.close()


@asynccontextmanager
async def scripted(*scripts: Script, ssl: object = None) -> AsyncIterator[ScriptedServer]:
    """A running `ScriptedServer` on a free loopback port."""
    server = ScriptedServer(*scripts)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=ssl)  # type: ignore[arg-type]
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for peer in server.peers:
            peer.writer.close()
