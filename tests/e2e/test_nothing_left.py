"""A request that is over is gone at once, however it ended: nothing of it waits for the collector of cycles. That comes once in 20,000
objects, and what waits for it meanwhile is hundreds of requests with their bodies."""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from backends.clients.http1 import ReplyParser
from backends.simengine import FaultRule, SimEngine, SimSettings
from domain.ask import Ask
from domain.faults import Fault
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.exchange import Exchange
from gateway.request.holds import OpenHold
from gateway.story import Story
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, chat, gateway
from tests.scripted_server import Peer, scripted
from tests.stored_files import file_service
from tests.timing import HANG_S, until

OF_REQUESTS = (Ask, EdgeConnection, Exchange, Fault, OpenHold, ReplyParser, Story)
ROUNDS = 3

pytestmark = [pytest.mark.slow, pytest.mark.req("GATEWAYS-1")]


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    """For the collector, of all that is done meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
        there = _of_requests()
        gc.collect()
        assert there - _of_requests() == Counter()
    finally:
        gc.enable()


def _of_requests() -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, OF_REQUESTS))


async def breaks(peer: Peer) -> None:
    """Answers polls, and breaks off every chat."""
    while request := await peer.request():
        if request.startswith(b"POST"):
            peer.reset()
            return
        body = b'{"object":"list","data":[{"id":"sim"}]}' if b"/v1/models" in request else b""
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def over(gate: Gateway, closed: int) -> None:
    """Until so many requests are closed and every connection is gone."""
    await gate.recorded(closed)
    async with asyncio.timeout(HANG_S):
        while gate.connections.open:
            await asyncio.sleep(0.005)
    for _ in range(10):  # turns of the loop, which still holds something of connections that were closed
        await asyncio.sleep(0.005)


async def post(gate: Gateway, **options: object) -> int:
    async with gate.client() as client:
        return (await client.post("/v1/chat/completions", **options)).status_code  # type: ignore[arg-type]  # as httpx has them


async def answered(gate: Gateway) -> None:
    assert await post(gate, json=chat()) == 200


async def no_key(gate: Gateway) -> None:
    assert await post(gate, json=chat(), headers={"authorization": "Bearer gw_live_nobodys"}) == 401


async def no_json(gate: Gateway) -> None:
    assert await post(gate, content=b'{"model":"sim","messages":[', headers={"content-type": "application/json"}) == 400


async def no_model(gate: Gateway) -> None:
    assert await post(gate, json=chat() | {"model": "other"}) == 404


async def over_limit(gate: Gateway) -> None:
    async with gate.client("bolt") as client:
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 429


async def leaves_early(gate: Gateway) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    key = gate.keys["acme"].encode()
    lines = b"host: g\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n" % key
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n" + lines + b"{")
    await until(lambda: any(one._exchange for one in gate.connections.open))
    writer.transport.abort()
    closed = len(gate.records) + 1
    assert (await gate.recorded(closed))[-1].outcome == "client_gone"


async def leaves_late(gate: Gateway) -> None:
    async with gate.client() as client, client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=5000)) as reply:
        async for _ in reply.aiter_bytes():
            return


async def no_http(gate: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    writer.write(b"hello\r\n\r\n")
    assert b"400" in await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def in_front_of(*urls: str) -> AsyncIterator[Gateway]:
    nothing = Limit(Scope(Level.TENANT, "bolt"), Meter.REQUESTS, Window.DAY, 0)
    async with gateway(*urls, limits=[nothing]) as gate:
        yield gate


WAYS = [answered, no_key, no_json, no_model, over_limit, leaves_early, leaves_late]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
async def test_however_it_ends(way: Callable[[Gateway], Awaitable[None]]) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=100)) as engine, in_front_of(engine.url) as gate:
        await way(gate)
        await over(gate, 1)
        with nothing_waits():
            for _ in range(ROUNDS):
                await way(gate)
            await over(gate, 1 + ROUNDS)


async def test_what_is_no_request_at_all() -> None:
    async with SimEngine(SimSettings(models=("sim",))) as engine, in_front_of(engine.url) as gate:
        with nothing_waits():
            for _ in range(ROUNDS):
                await no_http(gate)
            await over(gate, 0)


async def test_engines_that_break_off() -> None:
    async with scripted(breaks) as bad, in_front_of(bad.url) as gate:
        with nothing_waits():
            for _ in range(ROUNDS):
                assert await post(gate, json=chat()) in (502, 503)
            await over(gate, ROUNDS)


async def test_another_engine_that_begins_anew_and_a_stream_that_breaks_off() -> None:
    settings = SimSettings(models=("sim",), speed=20)
    async with SimEngine(settings) as engine, scripted(breaks) as bad, in_front_of(engine.url, bad.url) as gate:
        with nothing_waits():
            for _ in range(4 * ROUNDS):
                await post(gate, json=chat(max_tokens=4))
            await over(gate, 4 * ROUNDS)
            assert any(record.failed for record in gate.records)
            engine.misbehave([FaultRule("reset_mid_stream", after=3)])
            for _ in range(ROUNDS):
                with contextlib.suppress(httpx.HTTPError):
                    await post(gate, json=chat(stream=True))
            await over(gate, 5 * ROUNDS)
            assert gate.records[-1].outcome != "ok"


FORM = {"content-type": "multipart/form-data; boundary=cut"}
FILE = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 3_000_000


async def send_file(gate: Gateway, status: int, end: bytes) -> None:
    async def body() -> AsyncIterator[bytes]:  # in chunks, so that its length says nothing
        yield FILE
        yield end

    async with gate.client() as client:
        assert (await client.post("/v1/files", content=body(), headers=FORM)).status_code == status


async def stored_file(gate: Gateway) -> None:
    await send_file(gate, 200, b'\r\n--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--cut--\r\n')


async def file_without_purpose(gate: Gateway) -> None:
    await send_file(gate, 400, b"\r\n--cut--\r\n")


async def file_without_end(gate: Gateway) -> None:
    await send_file(gate, 400, b"")


async def file_beyond_the_size(gate: Gateway) -> None:
    await send_file(gate, 413, b"x" * 2_000_000)


async def file_whose_sender_leaves(gate: Gateway) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    lines = (
        f"host: g\r\nauthorization: Bearer {gate.keys['acme']}\r\ncontent-type: {FORM['content-type']}\r\ncontent-length: 3999000\r\n\r\n"
    )
    writer.write(f"POST /v1/files HTTP/1.1\r\n{lines}".encode() + FILE)
    await until(lambda: any(one._exchange and one._exchange.handed_on for one in gate.connections.open))
    writer.transport.abort()
    closed = len(gate.records) + 1
    assert (await gate.recorded(closed))[-1].outcome == "client_gone"


FILE_WAYS = [file_whose_sender_leaves, stored_file, file_without_purpose, file_without_end, file_beyond_the_size]


@pytest.mark.parametrize("way", FILE_WAYS, ids=[way.__name__ for way in FILE_WAYS])
async def test_however_a_file_ends(way: Callable[[Gateway], Awaitable[None]], tmp_path: Path) -> None:
    async with file_service(tmp_path, max_file_bytes=4_000_000) as service, gateway(files=service) as gate:
        await way(gate)
        await over(gate, 1)
        with nothing_waits():
            for _ in range(ROUNDS):
                await way(gate)
            await over(gate, 1 + ROUNDS)
