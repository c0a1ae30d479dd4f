"""Bodies above the usual size over real sockets: a policy allows them, a total bounds them, and nothing is read for strangers."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Collection

import pytest

from domain.faults import Fault, Kind
from gateway.http.edge.exchange import Exchange, header_lines
from gateway.http.faults import render
from tests.wire.edge_server import Edge, edge

KIB = 1024
USUAL, LARGEST = 64 * KIB, 1024 * KIB
LIMITS = {"max_body_bytes": USUAL, "largest_body_bytes": LARGEST, "large_bodies_total_bytes": 2 * LARGEST}


def with_policy(running: Edge, allowed: Collection[int | None], known: Callable[[], Awaitable[object]] | None = None) -> None:
    """Serve as the lifecycle does: find the caller, then ask for the body with the sizes of the caller's policy. The path names the
    tenant."""

    async def serve(exchange: Exchange) -> None:
        try:
            if known is not None:
                await known()
            body = await exchange.body(allowed, exchange.head.path.removeprefix("/x"))
        except Fault as fault:
            running.faults.append(fault)
            if not exchange.gone:
                rendered = render(fault, "req-1")
                exchange.reply(rendered.status, header_lines(rendered.headers), rendered.body)
            return
        await asyncio.sleep(0)
        exchange.reply(200, b"content-type: text/plain\r\n", b"%d bytes" % len(body))

    running._echo = serve  # type: ignore[method-assign]


def declared(size: int, tenant: bytes = b"") -> bytes:
    return b"POST /x%b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (tenant, size) + b"x" * size


def chunked(size: int) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (b"x" * min(KIB, size - at) for at in range(0, size, KIB)))
    return b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def packed(size: int) -> bytes:
    body = gzip.compress(b"x" * size)
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@pytest.mark.parametrize("form", [declared, chunked, packed])
@pytest.mark.parametrize(
    ("allowed", "size", "status"),
    [
        ((), USUAL, 200),
        ((), USUAL + 1, 413),
        ((600 * KIB,), 600 * KIB, 200),
        ((600 * KIB,), 600 * KIB + 1, 413),
        ((None, 600 * KIB), 500 * KIB, 200),
        ((8 * KIB,), 8 * KIB, 200),
        ((8 * KIB,), 8 * KIB + 1, 413),
        ((100 * LARGEST,), LARGEST, 200),
        ((100 * LARGEST,), LARGEST + 1, 413),
    ],
)
async def test_a_policy_says_how_large_a_body_may_be(
    form: Callable[[int], bytes], allowed: tuple[int | None, ...], size: int, status: int
) -> None:
    async with edge(**LIMITS) as running:
        with_policy(running, allowed)
        got = await running.send(form(size))
        assert got.startswith(b"HTTP/1.1 %d " % status)
        assert got.endswith(b"%d bytes" % size) is (status == 200)
        if status == 413:
            assert b"caps.body_bytes" in got
            assert b"data.limits" in got
        assert running.connections.large_bodies == 0, "freed with the reply"


@pytest.mark.parametrize("form", [declared, chunked])
async def test_while_the_caller_is_not_known_no_more_is_read_than_usual(form: Callable[[int], bytes]) -> None:
    known = asyncio.Event()
    async with edge(**LIMITS | {"largest_body_bytes": 32 * LARGEST, "large_bodies_total_bytes": 64 * LARGEST}) as running:
        with_policy(running, (32 * LARGEST,), known.wait)
        sending = asyncio.create_task(running.send(form(32 * LARGEST)))
        while not running.exchanges or len(running.exchanges[0].received) < USUAL:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert len(running.exchanges[0].received) <= USUAL + 256 * KIB, "one read more, however fast the caller sends"
        known.set()
        assert b"%d bytes" % (32 * LARGEST) in await sending


async def test_a_caller_that_turns_out_to_be_a_stranger_gets_the_refusal() -> None:
    async def stranger() -> None:
        await asyncio.sleep(0.05)
        raise Fault(Kind.KEY_INVALID, "no")

    async with edge(**LIMITS) as running:
        with_policy(running, (), stranger)
        assert (await running.send(declared(LARGEST))).startswith(b"HTTP/1.1 401 ")


async def test_large_bodies_share_one_total() -> None:
    size = 900 * KIB
    async with edge(**LIMITS) as running:
        with_policy(running, (LARGEST,))
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        for _, writer in opened:
            writer.write(declared(size)[: 100 * KIB])
        while running.connections.large_bodies < 2 * size:
            await asyncio.sleep(0.01)
        refused = await running.send(declared(size))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in refused
        assert (await running.send(declared(USUAL))).startswith(b"HTTP/1.1 200 "), "usual ones go on"
        for _, writer in opened:
            writer.close()
        while running.connections.large_bodies:
            await asyncio.sleep(0.01)
        assert (await running.send(declared(size))).startswith(b"HTTP/1.1 200 ")


async def test_one_tenant_does_not_take_all_the_room() -> None:
    async with edge(**LIMITS | {"large_bodies_total_bytes": 4 * LARGEST}) as running:
        with_policy(running, (LARGEST,))
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        for _, writer in opened:
            writer.write(declared(LARGEST, b"acme")[: 100 * KIB])
        while running.connections.large_bodies < 2 * LARGEST:
            await asyncio.sleep(0.01)
        assert (await running.send(declared(USUAL + 1, b"acme"))).startswith(b"HTTP/1.1 503 "), "it holds half of the room"
        assert (await running.send(declared(USUAL, b"acme"))).startswith(b"HTTP/1.1 200 ")
        assert (await running.send(declared(LARGEST, b"bolt"))).startswith(b"HTTP/1.1 200 ")
        for _, writer in opened:
            writer.close()
        while running.connections.large_bodies:
            await asyncio.sleep(0.01)
        assert running.connections.large_bodies_of == {}


async def test_a_tenants_first_large_body_may_be_more_than_its_share() -> None:
    async with edge(**LIMITS | {"large_bodies_total_bytes": LARGEST}) as running:
        with_policy(running, (LARGEST,))
        assert (await running.send(declared(LARGEST, b"acme"))).startswith(b"HTTP/1.1 200 ")


async def test_a_small_compressed_body_takes_no_room_that_it_does_not_need() -> None:
    async with edge(**LIMITS | {"large_bodies_total_bytes": LARGEST}) as running:
        with_policy(running, (LARGEST,))
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(declared(900 * KIB)[: 100 * KIB])
        while not running.connections.large_bodies:
            await asyncio.sleep(0.01)
        assert (await running.send(packed(USUAL))).startswith(b"HTTP/1.1 200 ")
        assert (await running.send(packed(600 * KIB))).startswith(b"HTTP/1.1 503 "), "one that becomes large does"
        assert running.connections.large_bodies == 900 * KIB
        writer.close()
