"""Engines that are there and bring nothing, or next to nothing: how soon their callers hear of it, and who else notices."""

import asyncio
import time
from collections.abc import Callable

import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from routing.fleet import Availability, Backend
from tests.e2e.test_health import failed, load, until
from tests.fault.proxy import PASS, Fault, black_hole, deaf, drip, proxied
from tests.gateway_harness import Stream, chat, gateway, stream
from tests.scale import LONG, scaled
from tests.scripted_server import Peer, scripted
from tests.timing import HANG_S, at_most, timely

pytestmark = pytest.mark.slow

Note = Callable[[str, object], None]

SIM = SimSettings(models=("sim",), speed=20)
PATIENCE = {} if LONG else {"first_token_base_s": 1.0, "first_token_cap_s": 4.0, "token_gap_s": 1.5, "plain_timeout_s": 1.0, "poll_s": 0.2}
"""Those of production in the long form: 10 s to the first token, 30 s between two."""
FIRST_S = 10.0 if LONG else 1.0
GAP_S = 30.0 if LONG else 1.5
CLOSE_S = 1.0
"""How near to its limit a stream has to end."""
BY_COUNT = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "routing": "least_load"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'


def near(took_s: float, limit_s: float) -> bool:
    return limit_s <= timely(took_s, limit_s + CLOSE_S)


async def one_of(running_stream: "asyncio.Task[Stream]", after_s: float) -> float:
    """Seconds that a stream took after it fell silent."""
    seen = await running_stream
    assert not seen.done
    assert seen.status == 504 or seen.errors[0]["code"] == "upstream_timeout"
    return seen.last_s - after_s


@pytest.mark.fault("slow drip")
async def test_a_dripping_network_ends_streams_at_their_limits(record_property: Note) -> None:
    """One that drips from the start has until the first token, one that begins to drip has as long as a gap may be."""
    async with SimEngine(SIM) as engine, proxied(engine.url) as proxy, gateway(proxy.url, poll=False, engines=PATIENCE) as running:
        async with running.client() as client:
            begun = time.monotonic()
            flowing = asyncio.Event()
            early = asyncio.create_task(stream(client, begun=flowing, max_tokens=100_000, ignore_eos=True))
            await flowing.wait()
            await asyncio.sleep(0.5)
            dripping_at = time.monotonic()
            proxy.fault = drip(1, 10.0 if LONG else 0.5)
            late = asyncio.create_task(stream(client, max_tokens=5))
            ends = await one_of(early, dripping_at - begun), await one_of(late, 0.0)
        assert near(ends[0], GAP_S - 0.1)  # the last event is a little older than the first byte that was late
        assert near(ends[1], FIRST_S)
        record_property(
            "figure", f"a byte in 10 s: ended {ends[0]:.1f} s after the last event (limit {GAP_S:g} s), {ends[1]:.1f} s ({FIRST_S:g} s)"
        )
        assert running.open_holds == 0


@pytest.mark.fault("slow drip")
async def test_comments_are_no_progress(record_property: Note) -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, poll=False, engines=PATIENCE) as running, running.client() as client:
        engine.inject([FaultRule("comments_only")])
        took_s = await one_of(asyncio.create_task(stream(client, max_tokens=5)), 0.0)
        assert near(took_s, FIRST_S)
        record_property("figure", f"comments for ever: ended after {took_s:.1f} s (limit {FIRST_S:g} s)")


@pytest.mark.fault("slow drip")
@pytest.mark.skipif(not LONG, reason="takes the minute after which a stream's average counts; unit tests of patience hold the rule")
async def test_less_than_a_token_a_second_is_too_slow(record_property: Note) -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        while not peer.writer.is_closing():
            await peer.send(EVENT)
            await asyncio.sleep(2.0)

    async with scripted(slow) as engine, gateway(engine.url, poll=False) as running, running.client() as client:
        running.deps.live.fleet = running.deps.live.fleet.with_backend(_up(running.deps.live.fleet.pools["chat"].backends[0]))
        seen = await stream(client, max_tokens=100)
        assert seen.errors[0]["code"] == "upstream_timeout"
        assert near(seen.last_s, 60.0)
        record_property("figure", f"half a token a second: ended after {seen.last_s:.1f} s (limit 60 s)")


@pytest.mark.fault("accepts, never answers")
@pytest.mark.req("R3")
@pytest.mark.parametrize("fault", [black_hole(), deaf()] if LONG else [black_hole()], ids=lambda fault: fault.kind)
async def test_a_host_that_swallows_everything_is_out_soon(fault: Fault, record_property: Note) -> None:
    """Unlike an engine that hangs, it answers no polls either; connections that run become half-open."""
    async with SimEngine(SIM) as lost, SimEngine(SIM) as b, SimEngine(SIM) as c, proxied(lost.url) as proxy:
        async with gateway(proxy.url, b.url, c.url, policies=[BY_COUNT], engines=PATIENCE) as running, running.client() as client:
            async with load(client, scaled(60, 25)):
                await asyncio.sleep(0.5)
                before = len(running.records)
                proxy.fault = fault
                begun = time.monotonic()
                async with asyncio.timeout(HANG_S):
                    while next(s for s in running.deps.live.fleet.pools["chat"].backends if s.id == "e0").state is Availability.UP:
                        await asyncio.sleep(0.02)
                out_s = timely(time.monotonic() - begun, 30.0 if LONG else 4.0)
                await asyncio.sleep(max(0.0, scaled(3, 120) - out_s))
            since = running.records[before:]
            share = len(failed(since)) / len(since)
            record_property("figure", f"{fault.kind}: out after {out_s:.1f} s, {share:.2%} of {len(since)} failed")
            at_most(share, 0.01 if LONG else 0.05, "of the requests failed")
            assert running.open_holds == 0
            assert [running.deps.pool_states.in_flight(one) for one in ("e0", "e1", "e2")] == [0, 0, 0]
            proxy.fault = PASS
            await until(running, "e0", Availability.UP)


@pytest.mark.fault("accepts, never answers")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_with_nobody_else_the_caller_of_a_black_hole_gets_its_504_in_time(streamed: bool) -> None:
    engines = {"first_token_base_s": 0.5, "first_token_cap_s": 0.5, "plain_timeout_s": 0.5}
    async with SimEngine(SIM) as engine, proxied(engine.url) as proxy, gateway(proxy.url, poll=False, engines=engines) as running:
        proxy.fault = black_hole()
        async with running.client() as client:
            reply = await client.post("/v1/chat/completions", json=chat(stream=streamed))
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "upstream_timeout")
        assert near(reply.elapsed.total_seconds(), 0.5)
        assert running.open_holds == 0


def _up(backend: Backend) -> Backend:
    return Backend(backend.id, backend.pool, Availability.UP, "")
