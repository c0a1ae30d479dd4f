"""Engines that say they are well and are not: what the fleet does about them, end to end."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import quantiles

import httpx
import pytest

from backends.simengine.faults import FaultRule
from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from gateway.record import Record
from routing.fleet import Availability
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.pool_states import charged, released
from tests.scale import LONG, scaled
from tests.timing import HANG_S, at_most, timely
from tests.timing import until as state

SIM = SimSettings(models=("sim",), speed=20)
QUICK = {"first_token_base_s": 1.0, "first_token_cap_s": 4.0, "poll_s": 0.2}
"""The time limits of production are ten times as long; what is tested scales with them."""
BY_COUNT = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "routing": "least_load"}
"""Placement by counts alone, which goes on sending to an engine that brings nothing: what is tested is how it gets out."""


@asynccontextmanager
async def load(client: httpx.AsyncClient, per_s: float, *, streamed: bool = True) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Open-loop load: a request every 1/per_s seconds, whatever becomes of the others."""
    sent: list[asyncio.Task[object]] = []

    async def send() -> None:
        while True:
            sent.append(asyncio.create_task(_one(client, streamed)))
            await asyncio.sleep(1 / per_s)

    sending = asyncio.create_task(send())
    try:
        yield sent
    finally:
        sending.cancel()
        await asyncio.gather(*sent, return_exceptions=True)


async def _one(client: httpx.AsyncClient, streamed: bool) -> object:
    if streamed:
        return await stream(client, max_tokens=20, ignore_eos=True)
    return await client.post("/v1/chat/completions", json=chat(max_tokens=20, ignore_eos=True))


async def until(running: Gateway, backend: str, wanted: Availability) -> float:
    """Seconds until the backend is in that state."""
    begun = time.monotonic()
    async with asyncio.timeout(HANG_S):
        while next(b for b in running.deps.live.fleet.pools["chat"].backends if b.id == backend).state is not wanted:
            await asyncio.sleep(0.02)
    return time.monotonic() - begun


def failed(records: list[Record]) -> list[Record]:
    return [r for r in records if r.outcome != "ok"]


@pytest.mark.slow
@pytest.mark.fault("accepts, never answers")
@pytest.mark.req("R3")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_a_frozen_engine_is_out_soon_and_few_requests_notice(streamed: bool, record_property: pytest.FixtureRequest) -> None:
    engines = {} if LONG else {"engines": QUICK}
    lasts_s, within_s = scaled(8, 300), 30.0 if LONG else 4.0
    async with SimEngine(SIM) as frozen, SimEngine(SIM) as b, SimEngine(SIM) as c:
        async with gateway(frozen.url, b.url, c.url, policies=[BY_COUNT], **engines) as running, running.client() as client:
            frozen.misbehave([FaultRule("frozen")])
            async with load(client, scaled(60, 25), streamed=streamed):
                ejected_after_s = timely(await until(running, "e0", Availability.EJECTED), within_s)
                await asyncio.sleep(lasts_s - ejected_after_s)
            missed = failed(running.records)
            share = len(missed) / len(running.records)
            record_property("figure", f"ejected after {ejected_after_s:.1f} s, {share:.2%} of {len(running.records)} failed")  # type: ignore[operator]
            # in the short form the ejection is an eighth of the time, not a fifteenth
            at_most(share, 0.01 if LONG else 0.05, "of the requests failed")
            assert running.open_holds == 0
            assert [running.deps.pool_states.in_flight(one) for one in ("e0", "e1", "e2")] == [0, 0, 0]
            frozen.misbehave([])
            await until(running, "e0", Availability.UP)


@pytest.mark.fault("accepts, never answers")
@pytest.mark.req("R3")
async def test_a_plain_request_on_an_engine_that_froze_is_answered_by_another() -> None:
    async with SimEngine(SIM) as frozen, SimEngine(SIM) as good, gateway(frozen.url, good.url, engines=QUICK) as running:
        frozen.misbehave([FaultRule("frozen")])
        charge = charged(running.deps.pool_states, "e1", running.deps.clock())  # so that the frozen one is tried first
        async with running.client() as client:
            reply = await client.post("/v1/chat/completions", json=chat(max_tokens=3))
        assert reply.status_code == 200
        record = (await running.recorded(1))[0]
        assert (record.backend, record.failed, record.attempts) == ("e1", ("e0",), 2)
        assert record.duration_s < 300.0  # and not plain_timeout_s, which is ten minutes
        released(running.deps.pool_states, charge)


@pytest.mark.fault("accepts, never answers")
@pytest.mark.req("R3")
async def test_the_only_engine_stays_in_use_while_it_is_frozen_and_works_again_at_once_when_it_thaws() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, engines=QUICK) as running, running.client() as client:
        engine.misbehave([FaultRule("frozen")])
        replies = await asyncio.gather(*(stream(client, max_tokens=3) for _ in range(6)))
        assert {reply.status for reply in replies} == {504}
        backend = running.deps.live.fleet.pools["chat"].backends[0]
        while not backend.reason:
            await asyncio.sleep(0.05)
            backend = running.deps.live.fleet.pools["chat"].backends[0]
        assert backend.state is Availability.UP
        assert backend.reason.startswith("suspect: ")
        engine.misbehave([])
        assert (await stream(client, max_tokens=3)).done


@pytest.mark.slow
@pytest.mark.fault("wrong model")
@pytest.mark.req("R43")
async def test_a_swapped_model_is_out_until_it_answers_in_its_own_name() -> None:
    async with SimEngine(SIM) as swapped, SimEngine(SIM) as good, gateway(swapped.url, good.url, engines=QUICK) as running:
        swapped.misbehave([FaultRule("wrong_model")])
        async with running.client() as client:
            for _ in range(20):
                assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200
        await until(running, "e0", Availability.EJECTED)
        await asyncio.sleep(2.5)  # polls and probes go on; the name is still wrong
        assert running.deps.live.fleet.pools["chat"].not_up[0].reason.startswith("wrong model: ")
        swapped.misbehave([])
        await until(running, "e0", Availability.UP)
        assert {r.backend for r in running.records} == {"e1"}


@pytest.mark.fault("restart with an empty cache")
@pytest.mark.req("R43")
async def test_a_restarted_engine_gets_a_tenth_at_first(record_property: pytest.FixtureRequest) -> None:
    settings = SimSettings(models=("sim",), speed=2)
    async with SimEngine(settings) as again, SimEngine(settings) as steady, gateway(again.url, steady.url, engines=QUICK) as running:
        async with running.client() as client:
            await asyncio.gather(*(stream(client, max_tokens=5) for _ in range(8)))
            await asyncio.sleep(1.2)  # start times nearer than a second are one start
            again.inject([FaultRule("restart_empty_kv")])
            await asyncio.gather(*(stream(client, max_tokens=5) for _ in range(6)))
            async with asyncio.timeout(HANG_S):
                while running.deps.live.fleet.pools["chat"].backends[0].warming_since is None:
                    await asyncio.sleep(0.02)
            before = len(running.records)
            async with load(client, 40):
                await asyncio.sleep(2)
            since = [record.backend for record in running.records[before:]]
            share = since.count("e0") / len(since)
            assert share < 0.3
            record_property("figure", f"{share:.0%} of {len(since)} requests in the first 2 s after a restart")  # type: ignore[operator]


@pytest.mark.fault("slow drip")
async def test_a_dripping_engine_is_ended_at_the_limit_and_the_others_do_not_notice(record_property: pytest.FixtureRequest) -> None:
    engines = {**QUICK, "first_token_base_s": 3.0, "token_gap_s": 3.0}  # longer than all the others take together
    async with (
        SimEngine(SIM) as drip,
        SimEngine(SIM) as good,
        gateway(drip.url, good.url, policies=[BY_COUNT], engines=engines) as running,
    ):
        async with running.client() as client:
            spans = {"before": await spans_of(client, 40)}
            drip.misbehave([FaultRule("slow_drip", bytes_per_s=1.0)])
            # three, because a reading may still count a request that is over, or one that has just come twice: no tie is made of them
            busy = [charged(running.deps.pool_states, "e1", running.deps.clock()) for _ in range(3)]
            dripping = asyncio.create_task(stream(client, max_tokens=5))
            await state(lambda: running.deps.pool_states.in_flight("e0"))  # that one drips
            for one in busy:
                released(running.deps.pool_states, one)
            busy = [charged(running.deps.pool_states, "e0", running.deps.clock()) for _ in range(3)]
            spans["beside"] = await spans_of(client, 40)
            for one in busy:
                released(running.deps.pool_states, one)
            seen = await dripping
        assert not seen.done
        assert (seen.errors and seen.errors[0]["code"] == "upstream_timeout") or seen.status == 504
        assert [r.outcome for r in failed(running.records)] in (["first_token_timeout"], ["token_gap_timeout"])
        p99 = {when: quantiles(found, n=100)[98] for when, found in spans.items()}
        record_property("figure", f"others' p99 {p99['beside'] / p99['before']:.2f} times that without it")  # type: ignore[operator]


async def spans_of(client: httpx.AsyncClient, count: int) -> list[float]:
    spans = []
    for _ in range(count):
        begun = time.monotonic()
        assert (await stream(client, max_tokens=5)).done
        spans.append(time.monotonic() - begun)
    return spans
