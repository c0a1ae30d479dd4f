"""Overloaded requests are given what their tenant's policy says instead of a wait or a refusal, and are told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from backends.simengine import SimEngine, SimSettings
from domain.usage import Usage
from gateway.telemetry.access_log import line_of
from policies.rollout.assignment import Arm
from policies.rollout.in_force import ActiveRollouts, Running
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tenancy.rights import Rights
from tests import timing
from tests.gateway_harness import Gateway, chat, gateway

MODELS = [{"name": "big", "pool": "large"}, {"name": "small", "pool": "small"}, {"name": "hidden", "pool": "small"}]
LADDER: list[Any] = [{"trim_output_tokens": 4}, {"model": "hidden"}, {"model": "small"}]


async def until(running: Gateway, in_flight: int) -> None:
    await timing.until(lambda: running.deps.pool_states.total() == in_flight)


@contextlib.asynccontextmanager
async def served(steps: list[Any], **options: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """The large model's engine is full; the small one's has room for two. Nobody waits."""
    acme = {"tenant": "acme", "models": MODELS, "max_wait_s": 0, "degrade": steps}
    policies = [acme, {"tenant": "*", "models": MODELS}]
    async with contextlib.AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(SimEngine(SimSettings(models=(name,))))).url for name in ("large-1", "small-1")]
        pools = [
            {"name": "large", "model": "large-1", "backends": [{"id": "l", "url": urls[0], "max_in_flight": 1}]},
            {"name": "small", "model": "small-1", "backends": [{"id": "s", "url": urls[1], "max_in_flight": 2}]},
        ]
        running = await stack.enter_async_context(gateway(pools=pools, policies=policies, **options))
        other = await stack.enter_async_context(running.client("crane"))
        long = asyncio.create_task(other.post("/v1/chat/completions", json=chat(model="big", max_tokens=6000)))
        await until(running, 1)
        try:
            yield running, await stack.enter_async_context(running.client())
        finally:
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)


async def ask(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(**{"model": "big", "max_tokens": 40, **more}), headers=headers)


async def test_the_smaller_model_answers_shorter_and_everybody_is_told_which() -> None:
    prices = [
        Price(model, model, ANY_REVISION, 0.0, TokenRates(output=micro * 1_000_000)) for model, micro in (("big", 1_000), ("small", 10))
    ]
    rights = {"acme": Rights(models=frozenset({"big", "small"}))}
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 100_000)]
    async with served(LADDER, prices=prices, rights=rights, limits=limits) as (running, client):
        reply = await ask(client)
        assert (reply.status_code, reply.json()["model"], reply.json()["usage"]["completion_tokens"]) == (200, "small", 4)
        assert reply.headers["x-tidegate-degraded"] == "trim_output_tokens, model=small"
        record = running.records[-1]
        assert (record.model, record.asked_model, record.pool, record.backend) == ("small", "big", "small", "s")
        assert record.steps == ("trim_output_tokens", "model=small")
        assert record.passed_over == ("model=hidden: the caller may not use it",)
        assert (record.usage, record.cost_nanousd) == (Usage(record.usage.prompt_tokens, 4), 40), "what answered is what it costs"
        assert record.price_id == "small"
        assert b'"asked_model":"big","steps":"trim_output_tokens, model=small"' in line_of(record)
        told = running.deps.decisions.find(record.own_id)
        assert told is not None
        assert (told.model, told.asked_model, told.steps, told.passed_over) == ("small", "big", record.steps, record.passed_over)


async def test_who_opts_out_is_refused_and_who_asks_for_the_small_model_gets_it_whole() -> None:
    async with served(LADDER) as (running, client):
        reply = await ask(client, {"x-tidegate-degrade": "never"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
        assert "x-tidegate-degraded" not in reply.headers
        whole = await ask(client, model="small")
        assert (whole.json()["usage"]["completion_tokens"], "x-tidegate-degraded" in whole.headers) == (40, False)
        assert (await ask(client, {"x-tidegate-degrade": "please"})).json()["error"]["code"] == "invalid_value"
        assert running.records[-1].steps == ()


async def test_streams_say_it_in_their_head_and_where_nothing_helps_the_answer_is_503() -> None:
    async with served([{"model": "small"}]) as (running, client):
        reply = await ask(client, stream=True, max_tokens=1)
        assert (reply.status_code, reply.headers["x-tidegate-degraded"]) == (200, "model=small")
        held = [asyncio.create_task(ask(client, model="small", max_tokens=6000)) for _ in range(2)]
        await until(running, 3)
        reply = await ask(client)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
        record = running.records[-1]
        assert (record.model, record.asked_model, record.steps, record.closing) == ("big", "", (), "")
        assert record.passed_over == ("model=small: its turn would come no sooner",)
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_a_rollout_hears_of_its_pool_that_had_no_room_and_of_nothing_that_another_model_answered() -> None:
    async with served([{"model": "small"}]) as (running, client):
        running.deps.live.rollouts = ActiveRollouts(
            {"large": Running("ro_1", "v2", "large", "v2", 0.0, 0.0, counting=True, interval_s=10.0)}
        )
        assert (await ask(client)).json()["model"] == "small"
        told, record = await running.recorded(2)
        assert told.dealt is not None
        assert (told.dealt.arm, told.dealt.counted, told.outcome, told.shadow) == (Arm.BASELINE, True, "overloaded", True)
        assert (record.outcome, record.model, record.dealt) == ("ok", "small", None)
