"""Pools that have no engine while nobody asks for them: requests are held until one starts, within bounds, or told when to come back."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from domain.membership import Member, Traits
from gateway.fleet.sources import RegisteredSource
from tenancy.stores.memory import MemoryMemberStore
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import HANG_S, stolen_time, until

QUICK = SimSettings(models=("sim",), speed=2000)
MODEL = {"name": "sim", "pool": "chat"}
POLICY = {"tenant": "*", "models": [MODEL], "expose_headers": True}


@asynccontextmanager
async def asleep(
    *engines: str, to_zero: Mapping[str, Any] | None = None, policy: Mapping[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, MemoryMemberStore]]:
    """A gateway whose pool has no engine yet."""
    store = MemoryMemberStore()
    pool = {"backends": [], "scale": {"min": 0, "to_zero": dict(to_zero or {})}}
    policies = ({**POLICY, **(policy or {})},)
    async with gateway(*engines, registered=RegisteredSource(store), pool=pool, policies=policies, **sections) as running:
        yield running, store


def held(running: Gateway) -> int:
    (state,) = running.deps.queues.states()
    return state.held


def waiting(running: Gateway) -> int:
    return running.deps.queues["chat"].waiting


async def test_requests_are_held_until_an_engine_has_started_and_then_answered() -> None:
    async with SimEngine(QUICK) as engine, asleep() as (running, store), running.client() as client:
        assert held(running) == 0, "nobody has asked"
        plain = [asyncio.create_task(client.post("/v1/chat/completions", json=chat(max_tokens=4))) for _ in range(5)]
        streamed = [asyncio.create_task(stream(client, max_tokens=4)) for _ in range(5)]
        await until(lambda: waiting(running) == 10)
        assert held(running) == 10
        assert not any(task.done() for task in (*plain, *streamed))
        await store.add(Member("chat", "x", engine.url, "registered"), 0.0)
        assert [reply.status_code for reply in await asyncio.gather(*plain)] == [200] * 5
        assert [(seen.status, seen.done, seen.errors) for seen in await asyncio.gather(*streamed)] == [(200, True, [])] * 5
        records = await running.recorded(10)
        assert {record.queued for record in records} == {"served"}
        assert (waiting(running), held(running), running.open_holds) == (0, 0, 0)


async def test_a_head_that_a_heartbeat_sends_tells_the_wait_until_then_as_a_wait() -> None:
    async with SimEngine(QUICK) as engine, asleep(engines={"heartbeat_s": 0.2}) as (running, store), running.client() as client:
        async with stolen_time() as stolen, client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=4)) as reply:
            queue_ms, overhead_ms = (float(reply.headers[f"x-tidegate-{name}-ms"]) for name in ("queue", "overhead"))
            assert queue_ms >= 200
            assert overhead_ms < 100 + stolen() * 1000, "waiting is nobody's overhead"
            await store.add(Member("chat", "x", engine.url, "registered"), 0.0)
            assert (await reply.aread()).rstrip().endswith(b"data: [DONE]")
        (record,) = await running.recorded(1)
        assert record.queue_s * 1000 >= queue_ms, "and goes on"


async def test_held_requests_are_not_all_sent_at_once() -> None:
    slow = SimSettings(models=("sim",), speed=50)
    async with SimEngine(slow) as engine, asleep() as (running, store), running.client(limits=httpx.Limits(max_connections=40)) as client:
        asked = [asyncio.create_task(client.post("/v1/chat/completions", json=chat(max_tokens=8, ignore_eos=True))) for _ in range(40)]
        await until(lambda: waiting(running) == 40)
        most = 0

        async def watch() -> None:
            nonlocal most
            while not all(task.done() for task in asked):
                most = max(most, engine.in_flight)
                await asyncio.sleep(0)

        seen = asyncio.create_task(watch())
        await store.add(Member("chat", "x", engine.url, "registered", traits=Traits(max_in_flight=4)), 0.0)
        replies = await asyncio.gather(*asked)
        await seen
        assert [reply.status_code for reply in replies] == [200] * 40
        assert 1 <= most <= 4


@pytest.mark.parametrize(
    ("to_zero", "words"),
    [
        ({"max_requests": 3}, "Too many requests wait"),
        ({"max_requests_per_tenant": 3}, "Too many of your requests wait"),
        ({"max_bytes": 1024}, "take too much memory"),
        ({"max_bytes_per_tenant": 1024}, "take too much memory"),
    ],
)
async def test_what_cannot_be_held_is_told_when_to_come_back(to_zero: dict[str, Any], words: str) -> None:
    body = chat(max_tokens=4, messages=[{"role": "user", "content": "x" * 300}])
    async with asleep(to_zero={**to_zero, "cold_start_s": 90.0}) as (running, _), running.client() as client:
        asked = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(3)]
        await until(lambda: waiting(running) >= 2)
        async with asyncio.timeout(HANG_S):
            refused = await client.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_backend")
        assert words in refused.json()["error"]["message"]
        assert 60 <= float(refused.headers["retry-after"]) <= 95
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: waiting(running) == 0 and running.open_holds == 0)


async def test_one_tenant_does_not_take_the_places_of_others() -> None:
    to_zero = {"max_requests": 10, "max_requests_per_tenant": 4}
    async with SimEngine(QUICK) as engine, asleep(to_zero=to_zero) as (running, store):
        async with running.client() as acme, running.client(tenant="bolt") as bolt:
            crowd = [asyncio.create_task(acme.post("/v1/chat/completions", json=chat(max_tokens=2))) for _ in range(9)]
            await until(lambda: sum(task.done() for task in crowd) == 5)
            other = asyncio.create_task(bolt.post("/v1/chat/completions", json=chat(max_tokens=2)))
            await until(lambda: waiting(running) == 5)
            await store.add(Member("chat", "x", engine.url, "registered"), 0.0)
            assert (await other).status_code == 200
            statuses = sorted(reply.status_code for reply in await asyncio.gather(*crowd))
            assert statuses == [200] * 4 + [503] * 5


async def test_who_may_not_wait_long_enough_is_refused_at_once_and_wakes_the_pool() -> None:
    async with asleep(to_zero={"cold_start_s": 60.0}, policy={"max_wait_s": 5}) as (running, _), running.client() as client:
        refused = await client.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 503
        assert "longer than the 5 s" in refused.json()["error"]["message"]
        assert 30 <= float(refused.headers["retry-after"]) <= 65
        assert (waiting(running), held(running)) == (0, 1), "nobody waits, and an engine is wanted all the same"
    async with asleep(to_zero={"cold_start_s": 60.0}) as (running, _), running.client() as client:
        headers = {"x-tidegate-timeout-s": "3"}
        refused = await client.post("/v1/chat/completions", json=chat(), headers=headers)
        assert (refused.status_code, "3 s" in refused.json()["error"]["message"]) == (503, True)


async def test_an_engine_that_does_not_come_ends_the_wait() -> None:
    async with asleep(to_zero={"wait_s": 0.4, "cold_start_s": 0.2}) as (running, _), running.client() as client:
        late = await client.post("/v1/chat/completions", json=chat())
        assert late.status_code == 503
        assert "No engine of this model has started within the 0.4 s" in late.json()["error"]["message"]
        assert (await running.recorded(1))[0].queued == "timed_out"
        assert running.open_holds == 0


async def test_a_caller_that_leaves_frees_its_place() -> None:
    async with asleep() as (running, _):
        async with running.client() as client:
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
            await until(lambda: waiting(running) == 1)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: waiting(running) == 0)
        assert (await running.recorded(1))[0].outcome == "client_gone"
        assert running.open_holds == 0


async def test_a_gateway_that_stops_tells_those_that_it_holds() -> None:
    async with asleep() as (running, _), running.client() as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await until(lambda: waiting(running) == 1)
        running.deps.queues.stop()
        reply = await asked
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_shutting_down")
        assert reply.headers["retry-after"]


async def test_a_policy_with_another_model_for_an_outage_takes_that_and_wakes_the_pool() -> None:
    policy = {"models": [{**MODEL, "fallback": [{"to": "spare"}]}, {"name": "spare", "pool": "spare"}]}
    async with SimEngine(SimSettings(models=("spare",), speed=2000)) as engine:
        pools = [
            {"name": "chat", "model": "sim", "dialect": "vllm", "backends": [], "scale": {"min": 0, "to_zero": {}}},
            {"name": "spare", "model": "spare", "dialect": "vllm", "backends": [{"id": "s1", "url": engine.url}]},
        ]
        async with asleep(policy=policy, pools=pools) as (running, _), running.client() as client:
            reply = await client.post("/v1/chat/completions", json=chat(max_tokens=4))
            assert (reply.status_code, reply.json()["model"]) == (200, "spare")
            assert len(engine.received) == 1
            assert {state.pool: state.held for state in running.deps.queues.states()}["chat"] == 1, "the pool is asked to wake"


async def test_a_pool_that_may_not_sleep_refuses_at_once() -> None:
    store = MemoryMemberStore()
    async with gateway(registered=RegisteredSource(store), pool={"backends": [], "scale": {}}) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat())
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_backend")
        assert waiting(running) == 0
