"""A policy's deadline is for the whole request: its wait, its answer, and the models that stand in."""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from backends.simengine import SimEngine, SimSettings
from gateway.ledger.writer import usage_event
from tests.gateway_harness import Gateway, chat, gateway, no_engine, stream
from tests.timing import stolen_time


@contextlib.asynccontextmanager
async def served(**policy: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """An engine that takes half a second for a token."""
    models = [{"name": "slow", "pool": "slow"}, {"name": "gone", "pool": "gone", "fallback": [{"to": "slow"}]}]
    async with SimEngine(SimSettings(models=("s",), speed=0.02)) as slow, no_engine() as nobody:
        pools = [
            {"name": "slow", "model": "s", "backends": [{"id": "s", "url": slow.url, "max_in_flight": 1}]},
            {"name": "gone", "model": "g", "backends": [{"id": "g", "url": nobody}]},
        ]
        policies = [{"tenant": "*", "models": models, **policy}]
        async with gateway(pools=pools, policies=policies) as running, running.client() as client:
            yield running, client


async def test_an_answer_that_takes_longer_is_ended_and_what_came_is_charged() -> None:
    async with served(deadline_s=2.0, tpot_slo_s=0.01, ttft_slo_s=30.0) as (running, client):
        async with stolen_time() as stolen:
            begun = time.monotonic()
            seen = await stream(client, model="slow", max_tokens=500)
            assert 1.9 < time.monotonic() - begun < 3.0 + stolen()
        assert [error["code"] for error in seen.errors] == ["deadline_exceeded"]
        assert (seen.clean, seen.done, bool(seen.text)) == (False, False, True)
        record = running.records[-1]
        assert (record.outcome, record.closing, record.promises) == ("deadline_passed", "estimate", (("ttft", True),))
        row = usage_event(record)
        assert row is not None
        assert row.usage.completion_tokens == record.events > 0


async def test_an_answer_that_never_began_is_a_504_and_costs_nothing_by_way_of_another_model_too() -> None:
    async with served(deadline_s=0.3) as (running, client):
        for model in ("slow", "gone"):
            async with stolen_time() as stolen:
                begun = time.monotonic()
                reply = await client.post("/v1/chat/completions", json=chat(model=model, max_tokens=500))
                assert time.monotonic() - begun < 1.0 + stolen()
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert reply.headers["x-should-retry"] == "false"
            record = running.records[-1]
            assert (record.closing, record.model, len(record.fell_back)) == ("release", "slow", int(model == "gone"))
        assert running.open_holds == 0
