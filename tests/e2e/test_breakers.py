"""Engines that fail some of their requests: what callers notice, and what retries cost, end to end."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from backends.breaker import BreakerState
from backends.simengine.faults import FaultRule
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.pool_states import charged, released
from tests.scale import scaled
from tests.timing import HANG_S

pytestmark = pytest.mark.slow

Note = Callable[[str, object], None]

BY_COUNT = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "routing": "least_load"}
"""An engine that fails at once is always the least loaded: counts alone would send everything there."""
SIM = SimSettings(models=("sim",), speed=50)
HALF = FaultRule("status_500", p=0.5)
REQUESTS = scaled(180, 6000)
PER_S = 100


async def burst(running: Gateway) -> None:
    """Open-loop load, half of it streamed."""
    sent: list[asyncio.Task[object]] = []
    async with running.client() as client:
        for n in range(REQUESTS):
            one = stream(client, max_tokens=4) if n % 2 else client.post("/v1/chat/completions", json=chat(max_tokens=4))
            sent.append(asyncio.create_task(one))  # type: ignore[arg-type]  # two kinds of reply
            await asyncio.sleep(1 / PER_S)
        await asyncio.gather(*sent)


@pytest.mark.req("R11", "ROUTERS-19")
@pytest.mark.parametrize("share_failed", [0.5, 0.9])
async def test_of_three_backends_one_that_fails_is_hardly_noticed(share_failed: float, record_property: Note) -> None:
    async with (
        SimEngine(SIM) as bad,
        SimEngine(SIM) as b,
        SimEngine(SIM) as c,
        gateway(bad.url, b.url, c.url, policies=[BY_COUNT]) as running,
    ):
        bad.misbehave([FaultRule("status_500", p=share_failed)])
        await burst(running)
        records = running.records
        share = sum(record.outcome == "ok" for record in records) / len(records)
        opens = running.deps.live.breakers.opens
        said = (
            f"{share:.2%} whole where one backend fails {share_failed:.0%} of {len(records)}; its breaker opened {opens.get('e0', 0)} times"
        )
        record_property("figure", said)
        assert share >= 0.99
        assert set(opens) <= {"e0"}
        assert (running.open_holds, running.deps.pool_states.total()) == (0, 0)
        if share_failed == 0.5:
            return  # the dice say whether it opens
        assert bad.count < len(records) / 4, "it gets less than its share"
        bad.misbehave([])
        async with asyncio.timeout(HANG_S), running.client() as client:
            while running.deps.live.breakers.of("e0").state(running.deps.clock()) is not BreakerState.CLOSED:
                await stream(client, max_tokens=2)
                await asyncio.sleep(0.02)


@pytest.mark.req("R1")
async def test_a_request_that_ends_two_engines_never_reaches_a_third() -> None:
    async with SimEngine(SIM) as third, AsyncExitStack() as doomed:
        engines = [await doomed.enter_async_context(SimEngine(SIM)) for _ in range(2)]
        async with gateway(*(e.url for e in engines), third.url, engines={"poll_s": 0.1}, policies=[BY_COUNT]) as running:
            for engine in engines:
                engine.inject([FaultRule("reset_before_headers")])
            charge = charged(running.deps.pool_states, "e2", running.deps.clock())  # so that the others are tried first
            async with running.client() as client:
                first = await client.post("/v1/chat/completions", json=chat(max_tokens=3))
                assert (first.status_code, first.headers["x-should-retry"]) == (502, "false")
                await doomed.aclose()
                async with asyncio.timeout(HANG_S):
                    while not running.deps.live.suspects.guilty:
                        await asyncio.sleep(0.02)
                again = await client.post("/v1/chat/completions", json=chat(max_tokens=3))
                assert (again.status_code, again.json()["error"]["code"]) == (400, "request_crashes_engines")
                assert third.count == 0
                assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200
            released(running.deps.pool_states, charge)


@pytest.mark.req("R11")
async def test_where_all_fail_half_retries_stay_within_their_budget_and_nobody_is_shut_out(record_property: Note) -> None:
    async with SimEngine(SIM) as a, SimEngine(SIM) as b, SimEngine(SIM) as c, gateway(a.url, b.url, c.url, policies=[BY_COUNT]) as running:
        for engine in (a, b, c):
            engine.misbehave([HALF])
        await burst(running)
        requests, attempts = len(running.records), a.count + b.count + c.count
        share = sum(record.outcome == "ok" for record in running.records) / requests
        record_property("figure", f"{attempts / requests:.3f} attempts per request, {share:.1%} of {requests} whole")
        assert attempts <= 1.25 * requests
        assert share >= 0.5
        assert {record.outcome for record in running.records} <= {"ok", "engine_error"}
