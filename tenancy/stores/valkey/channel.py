"""One pub/sub channel of the store, over two connections of its own: what is published there never stands before a decision about a limit.

One connection hears, the other one publishes; both are made anew together when one of them fails. On a cluster any node passes messages on
to all. Nothing is kept: what is published while the store is away, or while nobody listens, is lost.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import structlog
from hiredis import ProtocolError, Reader, ReplyError

from tenancy.counter_url import Address, CounterUrl
from tenancy.ports import CountersAway
from tenancy.stores.valkey.link import pack
from tenancy.stores.valkey.topology import topology_of

MAX_WAITING_BYTES: Final = 4 << 20
"""Bytes that wait to be sent; what would be more is dropped."""
CONNECT_S: Final = 2.0
"""Longest wait for a connection with its greeting, and for the answer to a message."""
SILENT_S: Final = 10.0
"""A connection on which nothing comes for so long, not even this process's own messages, is made anew. Gateways send one each second."""
AGAIN_S: Final = 0.5
"""Pause before the connection is made again."""
MAX_AGAIN_S: Final = 10.0
"""The pause doubles up to this while the store cannot be reached."""

_NOT_YET: Final = object()

log = structlog.get_logger("tidegate.store")


class ValkeyChannel:
    """Publishes to one channel and hears it.

    Args:
        url: a server, Sentinels or a cluster that other hosts reach too.
        name: of the channel. Channels have no database: deployments that share a server need different names.
    """

    def __init__(self, url: CounterUrl, name: str) -> None:
        self._url = url
        self._name = name
        self._topology = topology_of(url)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._more = asyncio.Event()
        self._none_waits = asyncio.Event()
        self._none_waits.set()
        self._up = False

    def publish(self, message: bytes) -> bool:
        """Send a message soon; False when the channel cannot be reached or too much waits, and the message is dropped."""
        if not self._up or self._waiting_bytes + len(message) > MAX_WAITING_BYTES:
            return False
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        self._none_waits.clear()
        self._more.set()
        return True

    async def sent(self) -> None:
        """Returns when no message waits; at once while the channel cannot be reached."""
        await self._none_waits.wait()

    async def run(self, heard: Callable[[bytes], None]) -> None:
        """Connect, send and hear for ever; connects again after a failure, which is logged once for each outage."""
        pause_s, told = AGAIN_S, False
        while True:
            try:
                await self._connected(heard)
            except (OSError, TimeoutError, CountersAway) as error:
                if self._up or not told:
                    why = str(error) or type(error).__name__
                    log.warning("hosts tell each other nothing until the store is back", store=self._url.shown(), reason=why)
                pause_s, told = AGAIN_S if self._up else min(2 * pause_s, MAX_AGAIN_S), True
            finally:
                self._up = False
                self._waiting.clear()
                self._waiting_bytes = 0
                self._none_waits.set()
            await asyncio.sleep(pause_s)

    async def _connected(self, heard: Callable[[bytes], None]) -> None:
        """Serve one pair of connections until one of them fails."""
        open_now: list[_RespStream] = []
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(CONNECT_S):
                address = (await self._topology.find()).owners[0]
                for _ in range(2):
                    open_now.append(await _RespStream.open(address, self._url))
                ears, mouth = open_now
                await ears.ask("SUBSCRIBE", self._name)
            self._up = True
            tasks = [asyncio.create_task(self._hear(ears, heard)), asyncio.create_task(self._send(mouth))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in open_now:
                stream.abort()

    async def _hear(self, ears: "_RespStream", heard: Callable[[bytes], None]) -> None:
        while True:
            async with asyncio.timeout(SILENT_S):
                reply = await ears.reply()
            if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
                heard(reply[2])

    async def _send(self, mouth: "_RespStream") -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                message = self._waiting.popleft()
                async with asyncio.timeout(CONNECT_S):
                    await mouth.ask("PUBLISH", self._name, message)
                self._waiting_bytes -= len(message)
            self._none_waits.set()


class _RespStream:
    """One connection that speaks RESP2, for one task."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._replies = Reader(notEnoughData=_NOT_YET)

    @classmethod
    async def open(cls, address: Address, url: CounterUrl) -> "_RespStream":
        """A connection that is logged in. Raises OSError, CountersAway."""
        if address.port:
            tls = ssl.create_default_context() if url.tls else None
            stream = cls(*await asyncio.open_connection(address.host, address.port, ssl=tls))
        else:
            stream = cls(*await asyncio.open_unix_connection(address.host))
        try:
            if url.password:
                await stream.ask("AUTH", url.username or "default", url.password)
        except BaseException:
            stream.abort()
            raise
        return stream

    async def ask(self, *command: bytes | str | int) -> Any:
        """The reply to a command. Raises OSError, and CountersAway for an error reply."""
        self._writer.write(pack(command))
        await self._writer.drain()
        reply = await self.reply()
        if isinstance(reply, ReplyError):
            raise CountersAway(f"{command[0]!r}: {reply}")
        return reply

    async def reply(self) -> Any:
        """The next reply or message. Raises OSError when the connection has ended, or is none of such a server."""
        try:
            while (reply := self._replies.gets()) is _NOT_YET:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError("the server closed the connection")
                self._replies.feed(data)
        except ProtocolError as error:
            raise ConnectionError(f"the server does not speak the protocol: {error}") from None
        return reply

    def abort(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()
