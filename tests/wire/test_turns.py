"""A connection that sends fast gets one read per turn of the loop, towards callers and towards engines."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream, _Connection
from backends.ports import Call
from backends.read_turns import FULL
from gateway.http.edge.connection import EdgeConnection
from tests.contract.test_upstream import STREAM, Sink
from tests.scripted_server import Peer, scripted
from tests.timing import HANG_S
from tests.wire.edge_server import edge

FLOOD_BYTES = 4 * 1024 * 1024


class Turns:
    """How many full pieces came in each turn of the loop."""

    def __init__(self) -> None:
        self.now = 0
        self.full: list[int] = []
        self._tick()

    def _tick(self) -> None:
        self.now += 1
        asyncio.get_running_loop().call_soon(self._tick)

    def watched(self, taken: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
        def take(connection: Any, data: bytes) -> None:
            if len(data) >= FULL:
                self.full.append(self.now)
            taken(connection, data)

        return take

    def one_each(self) -> bool:
        return len(self.full) > 3 and len(set(self.full)) == len(self.full)


@pytest.mark.fault("chunk flood")
async def test_a_caller_that_sends_fast_gets_one_read_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    monkeypatch.setattr(EdgeConnection, "data_received", turns.watched(EdgeConnection.data_received))
    async with edge() as running:
        head = b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % FLOOD_BYTES
        assert b"%d bytes" % FLOOD_BYTES in await running.send(head + b"x" * FLOOD_BYTES)
    assert turns.one_each()


async def test_an_engine_that_sends_fast_gets_one_read_a_turn_and_none_while_its_caller_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flood(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM + b"%x\r\n%b\r\n0\r\n\r\n" % (FLOOD_BYTES, b"x" * FLOOD_BYTES))
        await peer.wait_closed_by_client()

    turns, sink = Turns(), Sink()
    async with scripted(flood) as engine:
        upstream = RelayUpstream(endpoint(engine.url), time.monotonic, asyncio.get_running_loop())
        monkeypatch.setattr(_Connection, "data_received", turns.watched(_Connection.data_received))
        flight = upstream.dispatch(Call("POST", "/v1/chat/completions", b"{}", "req-1", None, None), sink)
        async with asyncio.timeout(HANG_S):
            while len(turns.full) < 2:
                await asyncio.sleep(0)
        flight.pause()
        await asyncio.sleep(0.05)
        paused_with = len(sink.body)
        await asyncio.sleep(0.05)
        assert len(sink.body) == paused_with < FLOOD_BYTES
        flight.resume()
        await sink.wait()
        assert len(sink.body) == FLOOD_BYTES
        await upstream.close()
    assert turns.one_each()
