"""Statistical reservations on real requests: less is held than may come, what is asked for is asked for, and what outgrows it is held."""

import asyncio
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.estimate import MIN_ANSWERS
from tenancy.limits import Limit, Meter, Window
from tests.e2e.test_limits import limit, looked
from tests.gateway_harness import Gateway, chat, gateway, stream

pytestmark = pytest.mark.slow

OUTPUT = limit(Meter.OUTPUT_TOKENS, Window.DAY, 10**6)
POLICY = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "max_output_tokens": 5000}


def statistical(engine: SimEngine, *limits: Limit) -> Any:
    return gateway(engine.url, policies=[{**POLICY, "output_reservation": "statistical"}], limits=limits)


async def learnt(running: Gateway, client: Any) -> int:
    """Let the gateway see enough answers that end by themselves; what it takes for usual then."""
    few = asyncio.Semaphore(4)  # until then all that may come is held

    async def ask() -> Any:
        async with few:
            return await client.post("/v1/chat/completions", json=chat())

    replies = await asyncio.gather(*[ask() for _ in range(MIN_ANSWERS)])
    longest = max(reply.json()["usage"]["completion_tokens"] for reply in replies)
    usual = running.deps.outputs.usual("acme", "sim")
    assert usual is not None
    assert longest <= usual <= longest * 9 / 8
    return usual


async def test_output_is_held_by_what_answers_usually_take_and_topped_up_when_one_outgrows_it() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=5)) as engine, statistical(engine, OUTPUT) as running:
        async with running.client() as client:
            usual = await learnt(running, client)
            settled = (await looked(running))[Meter.OUTPUT_TOKENS, Window.DAY].used
            long = asyncio.create_task(stream(client, max_tokens=2000, ignore_eos=True))
            held = []
            while not long.done():
                held.append((await looked(running))[Meter.OUTPUT_TOKENS, Window.DAY].held)
                await asyncio.sleep(0.02)
            assert b'"max_tokens":2000' in engine.received[-1].body, "only the reservation is smaller"
            assert -(-usual * 6 // 5) in held
            assert max(held) > 2 * usual, "topped up while it ran"
            assert max(held) <= 2000
            assert (await long).done
            state = (await looked(running))[Meter.OUTPUT_TOKENS, Window.DAY]
            assert (state.used - settled, state.held) == (2000, 0)


async def test_more_run_at_once_than_their_worst_cases_have_room_for() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=200)) as engine:
        async with gateway(engine.url, policies=[POLICY], limits=[limit(Meter.OUTPUT_TOKENS, Window.DAY, 30_000)]) as running:
            async with running.client() as client:
                strict = await asyncio.gather(*[client.post("/v1/chat/completions", json=chat()) for _ in range(20)])
        async with statistical(engine, limit(Meter.OUTPUT_TOKENS, Window.DAY, 30_000)) as running, running.client() as client:
            await learnt(running, client)
            replies = await asyncio.gather(*[client.post("/v1/chat/completions", json=chat()) for _ in range(20)])
            assert {reply.status_code for reply in replies} == {200}
            assert (await looked(running))[Meter.OUTPUT_TOKENS, Window.DAY].held == 0
    assert 429 in {reply.status_code for reply in strict}


async def test_a_strict_policy_learns_nothing() -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=2000)) as engine:
        async with gateway(engine.url, policies=[POLICY], limits=[OUTPUT]) as running, running.client() as client:
            for _ in range(MIN_ANSWERS):
                await client.post("/v1/chat/completions", json=chat())
            assert len(running.deps.outputs) == 0
