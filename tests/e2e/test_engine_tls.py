"""mTLS to engines with real certificates: engines that demand the gateway's, rotation of both sides under traffic, and what is said when
a certificate is missing or not the engine's to trust."""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography import x509

from backends.simengine import SimEngine, SimSettings
from routing.fleet import Availability
from tests.gateway_harness import chat, gateway
from tests.timing import until

NAMES = ("ca.pem", "gate.pem", "gate.key")
TLS = {"ca": NAMES[0], "certificate": NAMES[1], "private_key": NAMES[2]}


@dataclass
class Terminator:
    """TLS in front of a simulated engine, by a context that may be changed for the connections to come. `shown` counts the serial
    numbers of the clients' certificates."""

    port: int
    context: ssl.SSLContext
    shown: Counter[str] = field(default_factory=Counter)


def demanding(server: trustme.CA, clients: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.issue_cert("127.0.0.1").configure_cert(context)
    clients.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.asynccontextmanager
async def terminated(engine: SimEngine, context: ssl.SSLContext) -> AsyncIterator[Terminator]:
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener.setblocking(False)
    made = Terminator(listener.getsockname()[1], context)
    behind = urlsplit(engine.url)
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(sock: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=made.context)
        except (ssl.SSLError, OSError):
            return  # no certificate of ours
        made.shown[transport.get_extra_info("peercert")["serialNumber"]] += 1
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        engine_reader, engine_writer = await asyncio.open_connection(behind.hostname, behind.port)
        await asyncio.gather(pump(reader, engine_writer), pump(engine_reader, writer))

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            task = loop.create_task(serve(sock))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    accepting = loop.create_task(accept())
    try:
        yield made
    finally:
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)
        listener.close()


def put(folder: Path, clients: trustme.CA, *servers: trustme.CA) -> str:
    """A new client certificate of `clients` and the CAs of the engines; returns the certificate's serial number as peers show it."""
    leaf = clients.issue_cert("gate.example")
    for name, data in zip(
        NAMES, (b"".join(ca.cert_pem.bytes() for ca in servers), _chain(leaf), leaf.private_key_pem.bytes()), strict=True
    ):
        (folder / f".{name}").write_bytes(data)
        (folder / f".{name}").replace(folder / name)
    serial = f"{x509.load_pem_x509_certificate(_chain(leaf)).serial_number:X}"
    return serial.zfill(len(serial) + len(serial) % 2)


def _chain(leaf: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in leaf.cert_chain_pems)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["relay", "aiohttp"])
async def test_certificates_of_both_sides_are_rotated_under_traffic_and_no_request_fails(client: str, tmp_path: Path) -> None:
    servers, clients, new_servers, new_clients = (trustme.CA() for _ in range(4))
    first = put(tmp_path, clients, servers)
    async with (
        SimEngine(SimSettings(models=("sim",), speed=200)) as engine,
        terminated(engine, demanding(servers, clients)) as front,
        gateway(f"https://127.0.0.1:{front.port}", pool={"tls": TLS}, base_dir=tmp_path, engines={"client": client}) as running,
    ):
        statuses: Counter[int] = Counter()
        stop = asyncio.Event()

        async def ask() -> None:
            async with running.client() as caller:
                while not stop.is_set():
                    reply = await caller.post("/v1/chat/completions", json=chat(max_tokens=20, stream=True))
                    statuses[reply.status_code] += reply.text.endswith("data: [DONE]\n\n")
                    statuses[0] += not reply.text.endswith("data: [DONE]\n\n")

        askers = [asyncio.create_task(ask()) for _ in range(8)]
        await until(lambda: statuses[200] >= 20)
        assert set(front.shown) == {first}

        # the gateway's certificate is renewed by the same CA
        second = put(tmp_path, clients, servers)
        await until(lambda: front.shown[second] >= 2)

        # both CAs change: the gateway trusts the old and the new one, then the engine changes, and trusts new clients alone
        third = put(tmp_path, new_clients, servers, new_servers)
        both = demanding(servers, clients)
        new_clients.configure_trust(both)
        front.context = both
        await until(lambda: front.shown[third] >= 2)
        front.context = demanding(new_servers, new_clients)
        fourth = put(tmp_path, new_clients, new_servers)
        await until(lambda: front.shown[fourth] >= 2)
        seen = statuses[200]
        await until(lambda: statuses[200] >= seen + 20)
        stop.set()
        await asyncio.gather(*askers)
        assert list(front.shown) == [first, second, third, fourth]
        assert statuses[200] > 50
        assert {status for status, count in statuses.items() if count} == {200}
        assert {record.status for record in running.records} == {200}


async def test_an_engine_that_demands_a_certificate_is_down_without_one_and_the_reason_says_so(tmp_path: Path) -> None:
    servers, clients = trustme.CA(), trustme.CA()
    put(tmp_path, clients, servers)
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, terminated(engine, demanding(servers, clients)) as front:
        url = f"https://127.0.0.1:{front.port}"

        async def found(**tls: str) -> tuple[Availability, str]:
            async with gateway(url, pool={"tls": tls}, base_dir=tmp_path, poll=False) as running:
                (backend,) = running.deps.live.fleet.pools["chat"].backends
                return backend.state, backend.reason

        assert (await found(**TLS))[0] is Availability.UP
        state, reason = await found(ca="ca.pem")
        assert state is not Availability.UP
        assert "write the pool's tls.certificate if it demands a client certificate" in reason
        put(tmp_path, trustme.CA(), servers)
        assert (await found(**TLS))[0] is not Availability.UP, "a stranger's certificate"
        put(tmp_path, clients, trustme.CA())
        state, reason = await found(**TLS)
        assert state is not Availability.UP
        assert "its certificate is not trusted" in reason
