"""A bare edge for wire tests: the real connection code in front of a handler that echoes what it was asked."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from domain.faults import Fault
from gateway.http.edge.client_address import TrustedProxies
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.connections import Connections, EdgeLimits
from gateway.http.edge.exchange import Exchange, header_lines
from gateway.http.edge.listener import DataListener
from gateway.http.edge.per_address import AddressLimits
from gateway.http.faults import render
from tests.timing import HANG_S

LARGE_BYTES = 16 * 1024 * 1024
"""More than sockets buffer on both sides of a loopback connection."""


class Wire(asyncio.Transport):
    """A socket that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.out += bytes(data)

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Edge:
    """A listening edge with everything it served or refused."""

    def __init__(self, limits: EdgeLimits, clock: Callable[[], float], hosts: frozenset[bytes]) -> None:
        self.served: list[tuple[str, str, bytes]] = []
        self.exchanges: list[Exchange] = []
        self.faults: list[Fault] = []
        self.defects: list[BaseException] = []
        self.closed_unanswered: list[tuple[str, str, str]] = []
        """Reason, peer and the operator's sentence of each connection that `DataListener` closed."""
        self.listener: DataListener | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections = Connections(
            limits, clock, time.time, serve=self._serve, refuse=self._refuse, log_defect=self._defect, hosts=hosts
        )
        self.port = 0

    def _serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        task = asyncio.get_running_loop().create_task(self._echo(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _defect(self, error: BaseException, _where: str) -> None:
        self.defects.append(error)

    async def _echo(self, exchange: Exchange) -> None:
        try:
            body = await exchange.body() if exchange.head.has_body and exchange.head.path != "/no-body" else b""
        except Fault as fault:
            self.faults.append(fault)
            if not exchange.gone:
                rendered = render(fault, "req-1")
                exchange.reply(rendered.status, header_lines(rendered.headers), rendered.body)
            return
        self.served.append((exchange.head.method, exchange.head.path, body))
        if exchange.head.path == "/stream":
            exchange.start(b"content-type: text/plain\r\n")
            for piece in (b"one ", b"two"):
                exchange.write(piece)
            exchange.end()
        elif exchange.head.path == "/large":
            exchange.reply(200, b"content-type: text/plain\r\n", b"x" * LARGE_BYTES)
        elif exchange.head.path != "/never":
            exchange.reply(200, b"content-type: text/plain\r\n", b"%d bytes" % len(body))

    def _refuse(self, fault: Fault, _head: object) -> bytes:
        self.faults.append(fault)
        rendered = render(fault, "req-1")
        return b"HTTP/1.1 %d Refused\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
            rendered.status,
            len(rendered.body),
            rendered.body,
        )

    async def send(self, *pieces: bytes, until_closed: bool = True, within_s: float = HANG_S) -> bytes:
        """Send raw bytes on a new connection and read what comes back, to the close or to a short silence."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        got = b""
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            while data := await asyncio.wait_for(reader.read(65536), within_s if until_closed else 0.2):
                got += data
        except TimeoutError:
            if until_closed:
                raise AssertionError(f"still open after {got!r}") from None
        except ConnectionError:
            pass
        finally:
            writer.close()
        return got

    def listen(self, *, networks: Sequence[str], proxy_protocol: bool, addresses: AddressLimits | None, tls: Any) -> None:
        """Listen as a worker does that looks at connections before they begin."""
        self.connections.proxies = proxies = TrustedProxies.of(list(networks), "x-forwarded-for")
        self.listener = DataListener(
            self.connections,
            proxies=proxies,
            proxy_protocol=proxy_protocol,
            addresses=addresses,
            tls=tls,
            refused=lambda *refused: self.closed_unanswered.append(refused),
        )
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self.listener.start(sock, 4096)

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        for connection in list(self.connections.open):
            connection.abort()


@asynccontextmanager
async def looking_edge(
    networks: Sequence[str] = (),
    *,
    proxy_protocol: bool = False,
    addresses: AddressLimits | None = None,
    tls: Any = None,
    **limits: Any,
) -> AsyncIterator[Edge]:
    """A running edge that looks at connections before they begin, on a free loopback port."""
    made = Edge(EdgeLimits(**limits), time.monotonic, frozenset())
    made.listen(networks=networks, proxy_protocol=proxy_protocol, addresses=addresses, tls=tls)
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def edge(
    clock: Callable[[], float] = time.monotonic, hosts: frozenset[bytes] = frozenset(), ssl: Any = None, **limits: Any
) -> AsyncIterator[Edge]:
    """A running edge on a free loopback port."""
    made = Edge(EdgeLimits(**limits), clock, hosts)
    server = await asyncio.get_running_loop().create_server(lambda: EdgeConnection(made.connections), "127.0.0.1", 0, ssl=ssl)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.close()
        await asyncio.sleep(0.01)
