"""The admin port under strangers: half-open requests, slow bodies and unread answers keep no probe from its answer."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.app import create_admin_app
from gateway.admin.server import MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_REQUESTS, AdminConnection, AdminServer, BoundedRequests
from gateway.process.snapshots import WorkerSnapshot
from gateway.telemetry.metrics import Metrics
from tests.timing import HANG_S


class Impatient(AdminConnection):
    """A connection whose deadlines are over soon."""

    head_s = body_s = unread_s = 0.1
    idle_s = 0.2


async def one_worker(*, with_metrics: bool) -> list[WorkerSnapshot]:
    return [WorkerSnapshot(index=0, pid=1, state="ready", started_at=1.0, metrics=Metrics().snapshot() if with_metrics else None)]


@asynccontextmanager
async def served(app: ASGIApp | None = None, connection: type[AdminConnection] = AdminConnection) -> AsyncIterator[tuple[int, set[Any]]]:
    ready = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = AdminServer(app or create_admin_app(one_worker, version="1.2.3", workers=1), ready.set, connection)
    serving = asyncio.create_task(server.serve([listening]))
    await asyncio.wait_for(ready.wait(), HANG_S)
    try:
        yield listening.getsockname()[1], server.server_state.connections
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, HANG_S)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(port: int, count: int, begin: bytes) -> list[Ends]:
    ends = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if begin:
            writer.write(begin)
            await writer.drain()
        ends.append((reader, writer))
    return ends


HALF_OPEN = {
    "nothing": b"",
    "half a request line": b"GET /liv",
    "half a head": b"GET /livez HTTP/1.1\r\nHost: a\r\n",
    "half a body": b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
    "idle": b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("name", HALF_OPEN)
async def test_probes_are_answered_beside_300_half_open_requests(name: str) -> None:
    async with served() as (port, connections):
        strangers = await opened(port, 300, HALF_OPEN[name])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=HANG_S) as prober:
            seen = [(await prober.get(path)).status_code for path in ("/livez", "/readyz", "/metrics", "/version")]
        assert seen == [200, 200, 200, 200]
        assert 0 < len(connections) <= MAX_CONNECTIONS
        for _, writer in strangers:
            writer.close()


@pytest.mark.parametrize("name", HALF_OPEN)
async def test_every_half_open_request_ends(name: str) -> None:
    async with served(connection=Impatient) as (port, _):
        ((reader, writer),) = await opened(port, 1, HALF_OPEN[name])
        try:
            got = await asyncio.wait_for(reader.read(), HANG_S)
        except ConnectionResetError:
            got = b""
        assert got.startswith(b"HTTP/1.1 408 ") == (name in ("half a request line", "half a head"))
        writer.close()


async def test_an_answer_that_nobody_reads_ends() -> None:
    over = asyncio.Event()

    async def large(_scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(1000):
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        finally:
            over.set()

    async with served(large, Impatient) as (port, _):
        ((_, writer),) = await opened(port, 1, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(over.wait(), HANG_S)
        writer.close()


async def test_the_address_of_a_caller_is_that_of_its_connection_whatever_it_says() -> None:
    async def address(scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    claimed = {"x-forwarded-for": "203.0.113.9", "forwarded": "for=203.0.113.9", "x-real-ip": "203.0.113.9"}
    async with served(address) as (port, _), httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/", headers=claimed)).text == "127.0.0.1"


async def test_a_head_is_bounded_in_bytes() -> None:
    async with served() as (port, _):
        ((reader, writer),) = await opened(port, 1, b"GET /livez HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1))
        assert (await asyncio.wait_for(reader.readline(), HANG_S)) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        writer.close()


async def test_requests_under_way_are_bounded_and_probes_are_not() -> None:
    go_on = asyncio.Event()

    async def slow(_scope: Scope, _receive: Receive, send: Send) -> None:
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(BoundedRequests(slow))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        first = [asyncio.create_task(client.get("/admin/v1/keys")) for _ in range(MAX_REQUESTS)]
        await asyncio.sleep(0.05)
        one_more = await client.get("/admin/v1/keys")
        assert (one_more.status_code, one_more.json()["error"]["code"]) == (503, "overloaded")
        assert one_more.headers["retry-after"]
        probe = asyncio.create_task(client.get("/livez"))
        await asyncio.sleep(0.05)
        go_on.set()
        assert (await probe).status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*first)} == {200}
        assert (await client.get("/admin/v1/keys")).status_code == 200


async def test_a_server_that_nobody_asks_does_not_tick_and_answers_carry_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = 0

    async def on_tick(_server: object, _counter: int) -> bool:
        nonlocal ticks
        ticks += 1
        return False

    monkeypatch.setattr("uvicorn.Server.on_tick", on_tick)
    dates = iter(["Sun, 29 Nov 2026 09:00:00 GMT", "Sun, 29 Nov 2026 09:00:07 GMT"])
    monkeypatch.setattr("gateway.admin.server.formatdate", lambda *, usegmt: next(dates) if usegmt else "")
    async with served() as (port, _), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        answers = [await client.get("/livez") for _ in range(2)]
    assert [answer.headers["date"] for answer in answers] == ["Sun, 29 Nov 2026 09:00:00 GMT", "Sun, 29 Nov 2026 09:00:07 GMT"]
    assert [len(answer.headers.get_list("date")) for answer in answers] == [1, 1]
    assert ticks == 0, "uvicorn looks at each tick whether it should end; this server is told"
