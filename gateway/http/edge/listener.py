"""The listener of a data port that looks at a connection before it is one: who passed it on, and how many its address has.

`DataListener` accepts connections itself, where `data.trusted_proxies.proxy_protocol` or `data.per_address.connections` asks for it;
without either, `loop.create_server` accepts them, and nothing of this file runs. It works on the bare socket because both decisions come
before TLS: a proxy's header stands before the handshake, and a refusal is there to save its cost.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final, Literal

from gateway.http.edge.client_address import TrustedProxies
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.connections import IDLE_WAIT_S, Connections
from gateway.http.edge.per_address import NOT_COUNTED, AddressConnection, AddressLimits
from gateway.http.edge.proxy_protocol import MAX_BLOCK_BYTES, BadProxyHeader, ProxyHeader, read_header

RefusedFor = Literal["untrusted_proxy", "proxy_header", "address"]
"""Why a connection was closed without an answer: it came from no trusted proxy; the proxy's header did not come, or is none; its address
has too many connections."""

ACCEPTED_AT_ONCE: Final = 64
"""Connections that are accepted before other work of the worker goes on."""
PAUSE_S: Final = 1.0
"""How long nothing is accepted after the process has run out of descriptors or memory; asyncio's value."""
MOST_WAITING: Final = 2048
"""Connections of a worker whose header or TLS handshake is not complete; beyond it the one that has waited longest is closed. At 10,000 new
connections a second each of them has 200 ms."""
_OUT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AcceptedConnection(EdgeConnection):
    """A connection whose caller's address is known before it begins.

    Args:
        client: the caller's address.
        counted: the connection in the count of that address.
    """

    __slots__ = ("_client", "_counted")

    def __init__(self, connections: Connections, client: str, counted: AddressConnection) -> None:
        super().__init__(connections)
        self._client = client
        self._counted = counted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = self._client
        if self._counted.refusal is not None and not self._lingering:
            self._refuse(self._counted.refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._counted.lost()

    def close_if_idle(self) -> None:
        """Close the connection unless it has begun a request."""
        if self in self.connections.idle:
            self.expire_idle()


class _Accepted:
    """A connection until it is handed over."""

    __slots__ = ("client", "counted", "handed_over", "peer", "sock")

    def __init__(self, sock: socket.socket, peer: str, client: str, counted: AddressConnection) -> None:
        self.sock = sock
        self.peer = peer
        self.client = client
        self.counted = counted
        self.handed_over = False

    def drop(self) -> None:
        """Close the connection at once, also in the middle of a TLS handshake, and count it no longer."""
        self.counted.lost()
        with contextlib.suppress(OSError):  # it is closed already
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class DataListener:
    """Accepts the connections of one listening socket until `close`.

    Args:
        proxies: the trusted proxies; their own connections have no limit.
        proxy_protocol: whether each connection has to come from one of `proxies` and begins with a header of the PROXY protocol.
        addresses: the counts of addresses; None for no limit.
        refused: called for each connection that is closed without an answer, with the peer's address and a sentence for the operator.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        proxies: TrustedProxies,
        proxy_protocol: bool,
        addresses: AddressLimits | None,
        tls: ssl.SSLContext | None,
        refused: Callable[[RefusedFor, str, str], None],
    ) -> None:
        self._connections = connections
        self._proxies = proxies
        self._proxy_protocol = proxy_protocol
        self._addresses = addresses
        self._tls = tls
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}

    def start(self, sock: socket.socket, backlog: int) -> None:
        """Listen on a bound socket, which belongs to the listener from now on."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._sock = sock
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more. Connections whose header is on its way are still served."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self._sock is None:
                return
            try:
                sock, name = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF:
                    raise
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(PAUSE_S, self._resume)
                return
            sock.setblocking(False)
            self._accepted(sock, name[0] if sock.family in (socket.AF_INET, socket.AF_INET6) else "")

    def _resume(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        """Refuse a connection for the address that it comes from, or begin to serve it."""
        accepted = _Accepted(sock, peer, peer, NOT_COUNTED)
        if self._proxy_protocol:
            if not self._proxies.trusts(peer):
                self._close(accepted, "untrusted_proxy", "it comes from none of data.trusted_proxies.networks")
                return
        elif not self._count(accepted):
            return
        if len(self._waiting) >= MOST_WAITING:
            next(iter(self._waiting)).cancel()
        task = self._loop.create_task(self._serve(accepted))
        self._waiting[task] = None

        def over(task: asyncio.Task[None]) -> None:
            del self._waiting[task]
            if not accepted.handed_over:
                accepted.drop()

        task.add_done_callback(over)

    def _count(self, accepted: "_Accepted") -> bool:
        """Count a connection of an address; False where it was closed, because there are too many."""
        addresses, client = self._addresses, accepted.client
        if addresses is None or self._proxies.trusts(client):
            return True
        counted = addresses.connected(client)
        if counted is None:
            self._close(accepted, "address", f"{client} has twice as many as data.per_address.connections allows")
            return False
        accepted.counted = counted
        return True

    async def _serve(self, accepted: "_Accepted") -> None:
        """Read the proxy's header where there has to be one, and hand the connection over."""
        if self._proxy_protocol:
            header = await self._header(accepted)
            if header is None:
                return
            accepted.client = header.source or accepted.peer
            if not self._count(accepted):
                return
        client, counted = accepted.client, accepted.counted
        with contextlib.suppress(OSError, TimeoutError):  # the caller left, or its TLS handshake failed
            _, connection = await self._loop.connect_accepted_socket(
                lambda: AcceptedConnection(self._connections, client, counted), accepted.sock, ssl=self._tls
            )
            accepted.handed_over = True
            if self._sock is None:  # the drain has closed the idle connections before this one was there
                self._loop.call_later(IDLE_WAIT_S, connection.close_if_idle)

    async def _header(self, accepted: "_Accepted") -> ProxyHeader | None:
        """The header, of which nothing is left in the socket; None where the connection was closed instead."""
        limit_s = self._connections.limits.header_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._read_header(accepted.sock)
        except TimeoutError:
            why = f"its header of the PROXY protocol did not arrive within {limit_s:g} s"
        except BadProxyHeader as error:
            why = str(error)
        except OSError as error:
            why = f"it broke off before its header of the PROXY protocol was complete ({error.strerror or error})"
        self._close(accepted, "proxy_header", why)
        return None

    async def _read_header(self, sock: socket.socket) -> ProxyHeader:
        """Read up to the end of the header and no byte further: what follows is the caller's, and may be TLS."""
        data = b""
        while True:
            try:
                ahead = sock.recv(MAX_BLOCK_BYTES, socket.MSG_PEEK)
            except BlockingIOError:
                await self._readable(sock)
                continue
            if not ahead:
                raise BadProxyHeader("it ended before its header of the PROXY protocol was complete")
            header = read_header(data + ahead)
            sock.recv(len(ahead) if header is None else header.size - len(data))
            if header is not None:
                return header
            data += ahead

    async def _readable(self, sock: socket.socket) -> None:
        ready = self._loop.create_future()

        def tell() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(sock.fileno(), tell)
        try:
            await ready
        finally:
            self._loop.remove_reader(sock.fileno())

    def _close(self, accepted: "_Accepted", reason: RefusedFor, why: str) -> None:
        accepted.drop()
        self._refused(reason, accepted.peer, why)
