"""The PROXY protocol on real sockets: whose address counts, what is refused before a request is read, TLS behind it, and real proxies."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from gateway.http.edge import listener as listening
from gateway.http.edge.per_address import AddressBounds, AddressLimits
from gateway.http.edge.proxy_protocol import SIGNATURE
from tests.timing import HANG_S, until
from tests.valkey_servers import free_port
from tests.wire.edge_server import Edge, looking_edge

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
LOOPBACK = ["127.0.0.0/8"]
V1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n"
V2 = SIGNATURE + b"\x21\x11\x00\x0c" + bytes([203, 0, 113, 7, 192, 0, 2, 1, 0, 80, 1, 187])
V2_6 = SIGNATURE + b"\x21\x21\x00\x24" + bytes.fromhex("20010db8000000000000000000000007") * 2 + b"\0\x50\x01\xbb"
LARGE = SIGNATURE + b"\x21\x11\x08\x0f" + V2[16:] + b"\x20\x08\x00" + bytes(0x800)
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"


async def test_the_header_tells_the_address() -> None:
    told = [(V1, "203.0.113.7"), (V2, "203.0.113.7"), (V2_6, "2001:db8::7"), (LARGE, "203.0.113.7")]
    told += [(LOCAL, "127.0.0.1"), (b"PROXY UNKNOWN\r\n", "127.0.0.1"), (SIGNATURE + b"\x21\x00\x00\x00", "127.0.0.1")]
    async with looking_edge(LOOPBACK, proxy_protocol=True) as running:
        for header, address in told:
            assert (await running.send(header + REQUEST)).startswith(b"HTTP/1.1 200"), header
            assert running.exchanges[-1].client == address, header
        for header in (V1, V2, LARGE):
            pieces = [(header + REQUEST)[at : at + 1] for at in range(len(header + REQUEST))]
            assert (await running.send(*pieces)).startswith(b"HTTP/1.1 200"), "one byte at a time"
            assert running.exchanges[-1].client == "203.0.113.7"
        two = REQUEST.replace(b"close", b"keep-alive")
        answers = await running.send(V2 + two, until_closed=False)
        assert answers.count(b"HTTP/1.1 200") == 1
    assert (running.closed_unanswered, running.defects) == ([], [])


REFUSED = [
    (REQUEST, "does not begin with a header"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\n" + REQUEST, "does not end with CRLF"),
    (b"PROXY TCP4 " + b"1" * 200, "longer than 107"),
    (SIGNATURE + b"\x21\x11\xff\xff" + bytes(200), "at most 4096"),
    (SIGNATURE + b"\x21\x11\x00\x0f" + V2[16:] + b"\x04\xff\xff" + REQUEST, "reaches beyond"),
    (V1[:-3], "ended before"),
    (V2[:20], "ended before"),
    (b"", "ended before"),
]


@pytest.mark.parametrize(("data", "why"), REFUSED, ids=[why for _, why in REFUSED[:5]] + ["half a line", "half a block", "nothing"])
async def test_what_is_no_header_gets_no_answer(data: bytes, why: str) -> None:
    async with looking_edge(LOOPBACK, proxy_protocol=True) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(data)
        if why == "ended before":
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()
        await until(lambda: bool(running.closed_unanswered))
        ((reason, peer, told),) = running.closed_unanswered
        assert (reason, peer) == ("proxy_header", "127.0.0.1")
        assert why in told
        assert (running.exchanges, running.faults) == ([], []), "nothing was read as a request"


async def test_a_header_has_a_deadline() -> None:
    async with looking_edge(LOOPBACK, proxy_protocol=True, header_timeout_s=0.05) as running:
        assert await running.send(V1[:20]) == b""
        assert "did not arrive within 0.05 s" in running.closed_unanswered[0][2]


async def test_only_trusted_proxies_may_connect() -> None:
    async with looking_edge(["10.0.0.0/8"], proxy_protocol=True) as running:
        for data in (V1 + REQUEST, REQUEST):
            assert await running.send(data) == b""
    assert [reason for reason, _, _ in running.closed_unanswered] == ["untrusted_proxy"] * 2
    assert running.exchanges == []


async def test_the_other_header_counts_only_where_the_told_address_is_trusted_too() -> None:
    forwarded = REQUEST.replace(b"host: x\r\n", b"host: x\r\nx-forwarded-for: 198.51.100.1\r\n")
    async with looking_edge([*LOOPBACK, "203.0.113.0/28"], proxy_protocol=True) as running:
        await running.send(V1 + forwarded)  # 203.0.113.7 is a proxy of HTTP behind the one of TCP
        await running.send(V2_6 + forwarded)
        assert [exchange.client for exchange in running.exchanges] == ["198.51.100.1", "2001:db8::7"]


async def test_one_that_waits_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MOST_WAITING", 2)
    async with looking_edge(LOOPBACK, proxy_protocol=True) as running:
        slow = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        for _, writer in slow:
            writer.write(V1[:10])
        await asyncio.sleep(0.05)
        assert (await running.send(V1 + REQUEST)).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(slow[0][0].read(), HANG_S) == b""
        slow[1][1].write(V1[10:] + REQUEST)
        assert (await asyncio.wait_for(slow[1][0].read(), HANG_S)).startswith(b"HTTP/1.1 200")
        for _, writer in slow:
            writer.close()


async def test_a_header_on_its_way_when_the_port_closes_is_still_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "IDLE_WAIT_S", 0.01)
    async with looking_edge(LOOPBACK, proxy_protocol=True) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        _, silent = await asyncio.open_connection("127.0.0.1", running.port)
        silent.write(V1[:10])
        writer.write(V1[:10])
        await asyncio.sleep(0.05)
        assert running.listener is not None
        running.listener.close()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(V1[10:] + REQUEST)
        assert (await asyncio.wait_for(reader.read(), HANG_S)).startswith(b"HTTP/1.1 200")
        silent.write(V1[10:])
        await until(lambda: len(running.connections.open) == 1)
        await until(lambda: not running.connections.open)  # it sends nothing, and must not hold the drain up
        writer.close()
        silent.close()


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server and of a client that trusts it."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def over_tls(running: Edge, client: ssl.SSLContext, header: bytes) -> bytes:
    """The answer to a request over TLS whose ClientHello comes in one write with the header."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(header)
    answer, asked = b"", False
    while not answer.endswith(b"bytes"):
        try:
            if not asked:
                tls.do_handshake()
                tls.write(REQUEST)
                asked = True
            answer += tls.read(65536)
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            data = await asyncio.wait_for(reader.read(65536), HANG_S)
            if not data:
                break
            incoming.write(data)
    writer.close()
    return answer


async def test_the_header_comes_before_tls() -> None:
    server, client = contexts()
    async with looking_edge(LOOPBACK, proxy_protocol=True, tls=server) as running:
        for header in (V1, V2, LOCAL):
            assert (await over_tls(running, client, header)).startswith(b"HTTP/1.1 200"), header
        assert [exchange.client for exchange in running.exchanges] == ["203.0.113.7", "203.0.113.7", "127.0.0.1"]
        with contextlib.suppress(ConnectionError):
            assert await over_tls(running, client, b"") == b""
        assert await running.send(V1 + REQUEST) == b"", "plain HTTP on a port of TLS"
        assert [reason for reason, _, _ in running.closed_unanswered] == ["proxy_header"]


async def test_an_address_has_so_many_connections_and_its_proxy_any_number() -> None:
    limits = AddressLimits(AddressBounds(connections=2), lambda: 0.0)
    kept = V1 + REQUEST.replace(b"close", b"keep-alive")
    async with looking_edge(LOOPBACK, proxy_protocol=True, addresses=limits) as running:
        held = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        for reader, writer in held:
            writer.write(kept)
            assert (await reader.readuntil(b"bytes")).startswith(b"HTTP/1.1 200")
        refused = await running.send(V1 + REQUEST)
        assert refused.startswith(b"HTTP/1.1 429")
        assert b"Too many connections from your address (203.0.113.7): 2 are allowed." in refused
        for header in (V2_6, LOCAL, LOCAL, LOCAL):
            assert (await running.send(header + REQUEST)).startswith(b"HTTP/1.1 200")
        held[0][1].close()
        await until(lambda: len(running.connections.open) == 1)
        assert (await running.send(V1 + REQUEST)).startswith(b"HTTP/1.1 200")
        held[1][1].close()
        await until(lambda: not running.connections.open)
        assert limits.open_addresses == 0


# --- real proxies -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def proxy(command: list[str], port: int, home: Path) -> AsyncIterator[None]:
    """A real proxy that listens on the port, in the foreground."""
    with (home / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while True:
            assert process.poll() is None, (home / "proxy.log").read_text()
            with contextlib.suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            await asyncio.sleep(0.02)
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, HANG_S)


async def ask(port: int) -> bytes:
    """The answer to a caller with the address 127.0.0.3."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0))
    writer.write(REQUEST)
    answer = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    return answer


HAPROXY = """
defaults
  mode tcp
  timeout connect 60s
  timeout client 60s
  timeout server 60s
  option httpchk GET /probe
listen one
  bind 127.0.0.1:{ports[0]}
  server gateway 127.0.0.1:{gateway} send-proxy
listen two
  bind 127.0.0.1:{ports[1]}
  server gateway 127.0.0.1:{gateway} send-proxy-v2 check inter 100ms
listen checksum
  bind 127.0.0.1:{ports[2]}
  server gateway 127.0.0.1:{gateway} send-proxy-v2 proxy-v2-options crc32c,unique-id
"""


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")
async def test_a_real_haproxy(tmp_path: Path) -> None:
    async with looking_edge(["127.0.0.1/32"], proxy_protocol=True) as running:
        ports = [free_port() for _ in range(3)]
        file = tmp_path / "haproxy.cfg"
        file.write_text(HAPROXY.format(ports=ports, gateway=running.port))
        async with proxy(["haproxy", "-db", "-f", str(file)], ports[0], tmp_path):
            for port in ports:
                assert (await ask(port)).startswith(b"HTTP/1.1 200")
            await until(lambda: any(path == "/probe" for _, path, _ in running.served))
    clients = {exchange.head.path: set[str]() for exchange in running.exchanges}
    for exchange in running.exchanges:
        clients[exchange.head.path].add(exchange.client)
    assert clients == {"/": {"127.0.0.3"}, "/probe": {"127.0.0.1"}}, "a health check is the proxy's own"


NGINX = """{module}
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log;
events {{}}
stream {{
  server {{
    listen 127.0.0.1:{port};
    proxy_pass 127.0.0.1:{gateway};
    proxy_protocol on;
  }}
}}
"""


def nginx_stream() -> str | None:
    """The line that loads nginx's stream module, empty where it is built in; None without it."""
    if shutil.which("nginx") is None:
        return None
    built = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=False).stderr.split()
    modules = next((Path(word.partition("=")[2]) for word in built if word.startswith("--modules-path=")), Path())
    if "--with-stream" in built:
        return ""
    dynamic = modules / "ngx_stream_module.so"
    return f"load_module {dynamic};" if dynamic.is_file() else None


async def test_a_real_nginx(tmp_path: Path) -> None:
    module = nginx_stream()
    if module is None:
        pytest.skip("nginx is not installed, or has no stream module")
    async with looking_edge(["127.0.0.1/32"], proxy_protocol=True) as running:
        port, file = free_port(), tmp_path / "nginx.conf"
        file.write_text(NGINX.format(module=module, home=tmp_path, port=port, gateway=running.port))
        command = ["nginx", "-p", str(tmp_path), "-c", str(file), "-e", str(tmp_path / "error.log")]
        async with proxy(command, port, tmp_path):
            assert (await ask(port)).startswith(b"HTTP/1.1 200")
        assert running.exchanges[-1].client == "127.0.0.3"
