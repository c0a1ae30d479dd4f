"""One server of the counter store: keeps its connection up, has its circuit breaker, and lets no request wait longer than 50 ms, or half a
second for a server on the same host.

Everything that can take longer (connecting, greeting, probing) is done by one task of the node's own.
"""

import asyncio
import contextlib
import ssl
from typing import Any, Final

from hiredis import ReplyError

from tenancy.counter_url import Address, CounterUrl
from tenancy.ports import CountersAway
from tenancy.stores.valkey.breaker import NodeBreaker
from tenancy.stores.valkey.link import Link, pack

TIMEOUT_S: Final = 0.05
"""Longest time that a request waits for the store (reliability research, 2.3)."""
LOCAL_TIMEOUT_S: Final = 0.5
"""The time-out of a store on the same host (`Address.on_this_host`), the embedded one among them: it has no network to lose, so a late
answer says that this host is busy, and then limits have to stay exact."""
CONNECT_S: Final = 1.0
"""Longest time for a connection and its greeting; no request waits for that."""
SUSPECT_S: Final = 0.05
"""Between pings after a failure: with `TIMEOUT_S`, five failures take half a second even without traffic."""


class Node:
    """A server and the connection to it."""

    def __init__(self, address: Address, url: CounterUrl, scripts: dict[str, bytes], breaker: NodeBreaker) -> None:
        self.address = address
        self.timeout_s = LOCAL_TIMEOUT_S if address.on_this_host else TIMEOUT_S
        """The longest time that a request waits for this server."""
        self._url = url
        self._scripts = scripts
        self._breaker = breaker
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._why = f"not connected to {address} yet"
        self._tried = asyncio.Event()
        """Set once a connection was tried since the last one ended."""
        self._trouble = asyncio.Event()
        self.lineage = ""
        """The server's replication id: it changes with a failover, and when a server starts without its old files."""
        self._task = asyncio.create_task(self._tend())

    @property
    def up(self) -> bool:
        """Whether requests use this node."""
        return self._link is not None and self._breaker.closed

    @property
    def why(self) -> str:
        """The last failure, in words."""
        return self._why

    async def call(self, packed: bytes) -> Any:
        """The reply to a packed command, which may be an error reply.

        Raises:
            CountersAway: no reply came within `timeout_s`; at once while the breaker is open.
        """
        if not self._breaker.closed:
            raise CountersAway(self._why)
        link = self._link
        within_s = self.timeout_s
        if link is None:
            link, within_s = await self._wait_for_link()
        reply = await link.send(packed, within_s)
        if not self._breaker.untroubled and link is self._link:
            self._breaker.succeeded()
        return reply

    def failed(self, why: str) -> None:
        """Count a failure: the node answered that it cannot serve."""
        self._fail(1, why)

    def drop(self, why: str) -> None:
        """End the connection; the node's task makes a new one."""
        if self._link is not None:
            self._link.abort(why)

    async def close(self) -> None:
        """End the connection for good."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            link.abort("closed")

    async def _wait_for_link(self) -> tuple[Link, float]:
        """The connection that is being made and the seconds left to use it. Waits only for the first try since the last connection ended:
        it is worth waiting for a server that closed a connection, and not for one that refuses connections."""
        began = self._loop.time()
        if self._breaker.untroubled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_s):
                    await self._tried.wait()
        left_s = self.timeout_s - (self._loop.time() - began)
        if self._link is None or left_s <= 0:
            raise CountersAway(self._why)
        return self._link, left_s

    def _fail(self, count: int, why: str) -> None:
        self._why = f"{self.address}: {why}"
        opened = False
        for _ in range(min(count, self._breaker.failures_to_open)):
            opened |= self._breaker.failed(self._loop.time())
        self._trouble.set()
        if opened:
            # a connection with answers outstanding is of no use to a probe
            self.drop(why)

    def _ended(self, link: Link, why: str) -> None:
        if link is self._link:
            self._link = None
            self._tried.clear()
            self._why = f"{self.address}: {why}"
            self._trouble.set()

    async def _tend(self) -> None:
        while True:
            self._trouble.clear()
            if not self._breaker.closed and not self._breaker.may_probe(self._loop.time()):
                await asyncio.sleep(SUSPECT_S)
            elif self._link is None:
                if not await self._connect():
                    await asyncio.sleep(SUSPECT_S)
            elif not self._breaker.untroubled:
                await self._ping(self._link)
                await asyncio.sleep(SUSPECT_S)
            else:
                await self._trouble.wait()

    async def _connect(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                link = await self._open()
                try:
                    await self._greet(link)
                except BaseException:
                    link.abort("the greeting failed")
                    raise
        except (OSError, TimeoutError, CountersAway) as error:
            self._fail(1, str(error) or type(error).__name__)
            self._tried.set()
            return False
        self._breaker.succeeded()
        self._link = link
        self._tried.set()
        return True

    async def _open(self) -> Link:
        def new_link() -> Link:
            return Link(lambda count: self._fail(count, "no answer in time"), self._ended)

        if not self.address.port:
            return (await self._loop.create_unix_connection(new_link, self.address.host))[1]
        tls = ssl.create_default_context() if self._url.tls else None
        return (await self._loop.create_connection(new_link, self.address.host, self.address.port, ssl=tls))[1]

    async def _greet(self, link: Link) -> None:
        """Log in, choose the database, load the scripts, and check that the server accepts writes."""
        commands: list[tuple[bytes | str | int, ...]] = []
        if self._url.password:
            commands.append(("AUTH", self._url.username or "default", self._url.password))
        if self._url.db:
            commands.append(("SELECT", self._url.db))
        commands += [("SCRIPT", "LOAD", text) for text in self._scripts.values()]
        commands.append(("INFO", "replication"))
        sent = [link.send(pack(command), CONNECT_S) for command in commands]
        replies = await asyncio.gather(*sent)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError) and command[0] != "INFO":  # INFO may be forbidden, and is not needed
                raise CountersAway(f"{command[0]!r}: {reply}")
        replication = replies[-1] if isinstance(replies[-1], bytes) else b""
        known = dict(line.split(b":", 1) for line in replication.split(b"\r\n") if b":" in line)
        if known.get(b"role", b"master") != b"master":
            raise CountersAway("this server is a replica; only a primary takes writes")
        # the probe: a server that greets, but answers later than a request may wait, is not back
        reply = await link.send(pack(("PING",)), self.timeout_s)
        if isinstance(reply, ReplyError):
            raise CountersAway(f"PING: {reply}")
        self.lineage = known.get(b"master_replid", b"").decode("ascii", "replace")

    async def _ping(self, link: Link) -> None:
        try:
            reply = await link.send(pack(("PING",)), self.timeout_s)
        except CountersAway:
            return  # the link has counted it already
        if isinstance(reply, ReplyError):
            self._fail(1, str(reply))
        else:
            self._breaker.succeeded()
