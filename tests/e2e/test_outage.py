"""Every engine of a pool away at the same moment: requests wait, and one with a fallback does not."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from backends.simengine.server import SimEngine
from backends.simengine.settings import SimSettings
from tests.gateway_harness import chat, gateway, no_engine

AWAY_S = 1.0
PATIENT = {"x-tidegate-timeout-s": "30"}
"""Longer than the five seconds of the requirement: a busy machine must not decide."""


@pytest.mark.req("GATEWAYS-19")
async def test_requests_outlive_a_moment_in_which_every_engine_is_away() -> None:
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        engines = [await first.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=50))) for _ in range(2)]
        ports = [urlsplit(engine.url).port or 0 for engine in engines]
        running = await second.enter_async_context(gateway(*(engine.url for engine in engines)))
        client = await second.enter_async_context(running.client())

        async def ask() -> httpx.Response:
            return await client.post("/v1/chat/completions", json=chat(max_tokens=2), headers=PATIENT)

        assert (await ask()).status_code == 200
        await first.aclose()
        asked = [asyncio.create_task(ask()) for _ in range(20)]
        await asyncio.sleep(AWAY_S)
        assert not any(task.done() for task in asked)
        assert sum(running.deps.queues["chat"].state().waiting) == 20
        for port in ports:
            await second.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=50, port=port)))
        replies = await asyncio.gather(*asked)
        assert [reply.status_code for reply in replies] == [200] * 20
        await running.recorded(21)
        assert (running.open_holds, running.deps.pool_states.total()) == (0, 0)
        assert running.deps.live.contacts.lost == {}


@pytest.mark.req("GATEWAYS-19")
async def test_a_model_with_a_fallback_falls_back_at_once_and_one_that_may_not_wait_fails_at_once() -> None:
    models: list[dict[str, Any]] = [
        {"name": "sim", "pool": "away", "fallback": [{"to": "other"}]},
        {"name": "other", "pool": "there"},
        {"name": "alone", "pool": "away"},
    ]
    async with SimEngine(SimSettings(models=("sim",), speed=50)) as there, AsyncExitStack() as going, no_engine() as nobody:
        away = await going.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=50)))
        pools = [
            {"name": "away", "model": "sim", "backends": [{"id": "away-e", "url": away.url}]},
            {"name": "there", "model": "sim", "backends": [{"id": "there-e", "url": there.url}, {"id": "nobody", "url": nobody}]},
        ]
        policies = [{"tenant": "*", "models": models, "expose_headers": True}, {"tenant": "bolt", "models": models, "max_wait_s": 0}]
        async with gateway(pools=pools, policies=policies) as running, running.client() as client:
            await going.aclose()
            for _ in range(3):
                reply = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
                assert (reply.status_code, reply.json()["model"]) == (200, "other")
            assert [record.queued for record in running.records] == [""] * 3
            async with running.client("bolt") as hasty:
                reply = await hasty.post("/v1/chat/completions", json=chat(model="alone", max_tokens=2))
            assert reply.status_code in (502, 503)
            assert "retry-after" in reply.headers or reply.headers["x-should-retry"] == "false"
