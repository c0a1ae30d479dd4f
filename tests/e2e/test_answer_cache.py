"""The exact cache through a whole gateway, with a simulated engine."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from cache.ports import Selection
from cache.stores import valkey as stored
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.stores.valkey import node
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import until
from tests.valkey_servers import Server

GREEDY: dict[str, Any] = {"temperature": 0}


@contextlib.asynccontextmanager
async def cached(*, sim: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[tuple[SimEngine, Gateway]]:
    """A gateway with a cache before one engine, which answers twenty times as fast as a real one unless `sim` has another speed."""
    cache = options.pop("cache", {})
    policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "cache": cache}
    policy |= {"degrade": options.pop("degrade", [])}
    async with (
        SimEngine(SimSettings(models=("sim",), **{"speed": 20, **(sim or {})})) as engine,
        gateway(engine.url, policies=(policy,), **options) as running,
    ):
        yield engine, running


async def ask(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(**{**GREEDY, **fields}), headers=headers)


def text_of(reply: httpx.Response) -> str:
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def status(reply: httpx.Response) -> str:
    return reply.headers["x-tidegate-cache"]


async def test_an_equal_request_is_answered_from_the_cache_whole_or_streamed() -> None:
    async with cached() as (engine, running), running.client() as client:
        first = await ask(client)
        again = await ask(client, user="somebody")
        streamed = await stream(client, **GREEDY, stream_options={"include_usage": True})
        assert (status(first), status(again)) == ("miss", "hit-exact")
        assert text_of(again) == text_of(first) == streamed.text
        assert streamed.done
        assert engine.count == 1
        assert again.json()["id"] != first.json()["id"]
        assert again.json()["usage"]["completion_tokens"] == first.json()["usage"]["completion_tokens"]
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == first.json()["usage"]["prompt_tokens"]
        assert streamed.events[-1]["usage"]["completion_tokens"] == first.json()["usage"]["completion_tokens"]


async def test_an_answer_of_the_cache_is_explained_as_one() -> None:
    async with cached() as (_, running), running.client() as client:
        first, again = await ask(client), await ask(client)
        await running.recorded(2)
        placed, given = (running.deps.decisions.find(reply.headers["x-tidegate-request-id"]) for reply in (first, again))
        assert placed is not None
        assert given is not None
        assert (placed.cache, placed.pool, given.cache, given.pool, given.contenders) == ("miss", "chat", "hit-exact", "", ())
        assert given.reason == "answered from the cache; no backend was asked"
        assert 0 <= given.cache_age_s < 60
        assert placed.ended is not None
        assert given.ended is not None
        assert (placed.ended.outcome, placed.ended.status, given.ended.status) == ("ok", 200, 200)
        usage = first.json()["usage"]
        assert (placed.ended.prompt_tokens, placed.ended.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert placed.ended.duration_s > given.ended.queue_s == 0


async def test_a_miss_says_why_its_answer_was_not_kept() -> None:
    async with cached() as (_, running), running.client() as client:
        for max_tokens, headers in ((1, {}), (200, {"cache-control": "no-store"}), (300, {"x-tidegate-cache-ttl": "60"})):
            assert (await ask(client, headers, max_tokens=max_tokens)).status_code == 200
        cut, passed_by, kept = await running.recorded(3)
        assert [(record.cache, record.not_kept) for record in (cut, passed_by, kept)] == [
            ("miss", "length"), ("bypass:asked", ""), ("miss", ""),
        ]  # fmt: skip
        found = running.deps.decisions.find(cut.own_id)
        assert found is not None
        assert found.cache == "miss, not kept: length"
    async with cached(cache={"write": "trusted_keys"}) as (_, running), running.client() as client:
        await ask(client)
        assert [record.not_kept for record in await running.recorded(1)] == ["key"]


async def test_a_request_that_allows_kept_answers_alone_asks_no_engine_where_nothing_is_cached() -> None:
    async with SimEngine(SimSettings(models=("sim",))) as engine, gateway(engine.url) as running, running.client() as client:
        refused = await ask(client, {"cache-control": "only-if-cached"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (504, "not_cached")
        assert (await ask(client, {"cache-control": "no-cache"})).status_code == 200
        assert engine.count == 1


async def test_a_streamed_answer_serves_a_plain_request() -> None:
    async with cached() as (engine, running), running.client() as client:
        first = await stream(client, **GREEDY)
        again = await ask(client)
        assert (text_of(again), status(again)) == (first.text, "hit-exact")
        assert engine.count == 1


async def test_a_hit_counts_as_a_request_and_costs_no_tokens() -> None:
    limits = [
        Limit(Scope(Level.TENANT, "acme"), meter, Window.DAY, amount) for meter, amount in ((Meter.REQUESTS, 3), (Meter.TOKENS, 10_000))
    ]
    async with cached(limits=limits) as (_, running), running.client() as client:
        for _ in range(3):
            assert (await ask(client)).status_code == 200
        assert (await ask(client)).status_code == 429
        records = await running.recorded(4)
        assert [record.closing for record in records] == ["settle", "hit", "hit", ""]
        assert [record.usage.total_tokens for record in records[1:3]] == [0, 0]
        assert records[1].saved == records[0].usage
        assert records[1].backend == records[1].pool == ""


async def test_a_spent_budget_leaves_the_cache_open_where_the_ladder_ends_with_cache_only() -> None:
    limits = [Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 1_200)]
    for ladder, expected in (([], 429), (["cache_only"], 200)):
        async with cached(limits=limits, degrade=ladder) as (engine, running), running.client() as client:
            first = await ask(client, max_tokens=200, seed=9)
            assert first.status_code == 200, first.text
            seeds = iter(range(10, 100))
            while (spent := await ask(client, max_tokens=200, seed=next(seeds))).status_code == 200:
                pass
            assert (spent.status_code, spent.json()["error"]["code"]) == (429, "insufficient_quota")
            calls = engine.count
            again = await ask(client, max_tokens=200, seed=9)
            assert again.status_code == expected
            assert engine.count == calls
            if expected == 200:
                assert (status(again), text_of(again)) == ("hit-exact", text_of(first))
                records = await running.recorded(calls + 2)
                assert [record.closing for record in records[-2:]] == ["release", "hit"]
            assert not running.open_holds


async def test_a_streamed_hit_keeps_the_pace_of_the_policy_and_a_caller_may_leave_it() -> None:
    async with cached(cache={"pace_tokens_s": 2_000}) as (engine, running), running.client() as client:
        first = await stream(client, **GREEDY)
        again = await stream(client, **GREEDY)
        assert (again.text, again.done) == (first.text, True)
    async with cached(cache={"pace_tokens_s": 0.001}) as (engine, running), running.client() as client:
        await ask(client)
        leaving = asyncio.create_task(stream(client, **GREEDY))
        await until(lambda: running.deps.watch.watched)
        leaving.cancel()
        assert [record.outcome for record in await running.recorded(2)] == ["ok", "client_gone"]
        assert not running.deps.watch.watched
        assert engine.count == 1


async def test_part_of_the_price_may_be_charged() -> None:
    async with cached(cache={"hit_price": 0.5}) as (_, running), running.client() as client:
        for _ in range(2):
            await ask(client)
        first, hit = await running.recorded(2)
        assert hit.usage.completion_tokens == round(first.usage.completion_tokens / 2)


async def test_a_hit_is_served_while_every_engine_is_down() -> None:
    async with cached() as (engine, running), running.client() as client:
        first = await ask(client)
        engine.misbehave([FaultRule("reset_before_headers")])
        assert (await ask(client, seed=1)).status_code >= 500
        assert text_of(await ask(client)) == text_of(first)


@pytest.mark.req("R50")
async def test_no_answer_crosses_tenants_without_a_group() -> None:
    async with cached() as (engine, running), running.client() as client, running.client("bolt") as other:
        await ask(client)
        assert status(await ask(other)) == "miss"
        assert engine.count == 2


async def test_a_group_shares_answers() -> None:
    async with (
        cached(cache={"scope": "group", "group": "all"}) as (engine, running),
        running.client() as client,
        running.client("bolt") as other,
    ):
        await ask(client)
        assert status(await ask(other)) == "hit-exact"
        assert engine.count == 1


@pytest.mark.parametrize(
    ("fields", "headers", "reason"),
    [
        ({"temperature": 1}, {}, "bypass:sampled"),
        ({"n": 2}, {}, "bypass:choices"),
        ({}, {"cache-control": "no-store"}, "bypass:asked"),
        ({}, {"cache-control": "no-cache"}, "miss"),
        ({}, {"cache-control": "max-age=0"}, "miss"),
        ({}, {"x-tidegate-cache-namespace": "other"}, "miss"),
    ],
)
async def test_a_request_that_is_not_answered_from_the_cache_says_why(fields: dict[str, Any], headers: dict[str, str], reason: str) -> None:
    async with cached() as (engine, running), running.client() as client:
        await ask(client)
        assert status(await ask(client, headers, **fields)) == reason
        assert engine.count == 2


async def test_the_member_of_litellms_clients_steers_the_cache_and_reaches_no_engine() -> None:
    async with cached() as (engine, running), running.client() as client:
        await ask(client)
        assert status(await ask(client, cache={"use-cache": True})) == "hit-exact"
        assert status(await ask(client, cache={"no-cache": True})) == "miss"
        assert status(await ask(client, cache={"namespace": "n"})) == "miss"
        refused = await ask(client, cache={"ttl": "soon"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache.ttl")
        assert not any(b'"cache"' in one.body for one in engine.received)


async def test_a_request_that_finds_an_answer_is_not_refused_for_want_of_capacity() -> None:
    """Look-ahead's refusal is put off until the cache has been asked."""
    limit = {"kept_free": 0}
    async with SimEngine(SimSettings(models=("sim",), max_queued=1)) as engine:
        policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "cache": {}, "max_wait_s": 0.01}
        backends = [{"id": "e", "url": engine.url, "max_in_flight": 1}]
        async with gateway(policies=(policy,), pool={"backends": backends, "limit": limit}) as running:
            async with running.client() as client, running.client("bolt") as other:
                first = await ask(client)
                busy = [asyncio.create_task(ask(other, seed=seed, max_tokens=5_000, ignore_eos=True)) for seed in range(2)]
                await until(lambda: engine.in_flight == 1)
                assert text_of(await ask(client)) == text_of(first)
                assert (await ask(client, seed=9)).status_code == 503
                for one in busy:
                    one.cancel()
                await asyncio.gather(*busy, return_exceptions=True)


async def test_only_if_cached_is_never_sent_to_an_engine() -> None:
    async with cached() as (engine, running), running.client() as client:
        reply = await ask(client, {"cache-control": "only-if-cached"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "not_cached")
        assert engine.count == 0
        await ask(client)
        assert (await ask(client, {"cache-control": "only-if-cached"})).status_code == 200


async def test_equal_requests_at_once_make_one_engine_call() -> None:
    async with cached(sim={"speed": 0.5}) as (engine, running), running.client() as client:
        replies = await asyncio.gather(*(stream(client, **GREEDY) for _ in range(30)), *(ask(client) for _ in range(20)))
        texts = {reply.text if not isinstance(reply, httpx.Response) else text_of(reply) for reply in replies}
        assert len(texts) == 1
        assert engine.count == 1
        records = await running.recorded(50)
        assert sorted({record.closing for record in records}) == ["hit", "settle"]
        assert [record.closing for record in records].count("settle") == 1
        assert running.deps.answers.flights == {}


@pytest.mark.slow
@pytest.mark.req("R49")
async def test_a_thousand_equal_requests_are_one_engine_call_and_two_where_the_leader_fails() -> None:
    async with cached(sim={"speed": 1}, edge={"max_connections": 2_000}) as (engine, running), contextlib.AsyncExitStack() as stack:
        # of fifty connections each: httpx looks at every one of them for each request
        clients = [await stack.enter_async_context(running.client()) for _ in range(20)]
        for calls, faults in ((1, []), (3, [FaultRule("status_500", first=1)])):
            engine.misbehave(faults)
            replies = await asyncio.gather(*(ask(client, seed=calls) for client in clients for _ in range(50)))
            wrong = [reply.status_code for reply in replies if reply.status_code != 200]
            assert wrong in ([], [502])
            assert len({text_of(reply) for reply in replies if reply.status_code == 200}) == 1
            assert engine.count == calls, "the calls of both rounds"


async def test_a_leader_that_leaves_does_not_cancel_the_answer_of_the_others() -> None:
    async with cached(sim={"speed": 0.2}) as (engine, running), running.client() as client:
        leading = asyncio.create_task(stream(client, **GREEDY))
        await until(lambda: engine.batcher.running)
        following = asyncio.create_task(stream(client, **GREEDY))
        await until(lambda: any(flight.followers for flight in running.deps.answers.flights.values()))
        leading.cancel()
        answered = await following
        assert answered.done
        assert answered.text
        assert engine.counters.aborted == 0
        assert engine.count == 1


async def test_the_engine_stops_when_nobody_is_left() -> None:
    async with cached(sim={"speed": 0.05}) as (engine, running), running.client() as client:
        asking = [asyncio.create_task(stream(client, **{**GREEDY, "max_tokens": 500}, ignore_eos=True)) for _ in range(3)]
        await until(lambda: sum(len(flight.followers) for flight in running.deps.answers.flights.values()) == 2)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: engine.counters.aborted == 1)
        await until(lambda: not running.open_holds)


async def test_a_failure_before_the_first_byte_lets_the_next_one_lead() -> None:
    async with cached(sim={"speed": 0.5}) as (engine, running), running.client() as client:
        engine.misbehave([FaultRule("status_500", first=1)])
        replies = await asyncio.gather(*(ask(client) for _ in range(5)))
        assert sorted(reply.status_code for reply in replies) == [200, 200, 200, 200, 502]
        assert engine.count == 2


@pytest.mark.req("R11")
async def test_a_failure_after_the_first_byte_is_the_same_error_for_all() -> None:
    async with cached(sim={"speed": 0.5}) as (engine, running), running.client() as client:
        engine.misbehave([FaultRule("reset_mid_stream", after=3)])
        answers = await asyncio.gather(*(stream(client, **GREEDY) for _ in range(4)))
        assert {len(answer.errors) for answer in answers} == {1}
        assert not any(answer.done or answer.clean for answer in answers)
        assert {record.outcome for record in await running.recorded(4)} == {"broken_stream"}


async def test_gateways_on_one_store_share_answers_and_go_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((stored, "PATIENCE_S"), (stored, "WRITE_PATIENCE_S"), (node, "TIMEOUT_S"), (node, "LOCAL_TIMEOUT_S")):
        monkeypatch.setattr(module, name, 60.0)  # a busy machine is no store that is away
    policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, "cache": {}}
    server = Server(tmp_path).start()
    try:
        options: dict[str, Any] = {"policies": (policy,), "cache": {"store": server.url}}
        async with (
            SimEngine(SimSettings(models=("sim",))) as engine,
            gateway(engine.url, **options) as one,
            gateway(engine.url, **options) as other,
            one.client() as here,
            other.client() as there,
        ):
            first = await ask(here)
            await one.recorded(1)
            again = await ask(there)
            assert (status(again), text_of(again), engine.count) == ("hit-exact", text_of(first), 1)
            assert await one.deps.answers.store.purge(Selection(owner="acme", model="sim")) == 1
            assert status(await ask(there)) == "miss"
            server.stop()
            assert [status(await ask(client)) for client in (here, there)] == ["miss", "miss"]
    finally:
        server.stop()


async def embed(client: httpx.AsyncClient, *inputs: Any, **fields: Any) -> httpx.Response:
    return await client.post("/v1/embeddings", json={"model": "sim", "input": list(inputs), **fields})


def vectors(reply: httpx.Response) -> list[Any]:
    data = reply.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["embedding"] for item in data]


async def test_an_engine_is_asked_only_for_the_inputs_that_are_not_known() -> None:
    async with cached() as (engine, running), running.client() as client:
        alone = {text: vectors(await embed(client, text, dimensions=8))[0] for text in ("one", "two", "three")}
        seen = engine.count
        known = await client.post("/v1/embeddings", json={"model": "sim", "input": "two", "dimensions": 8})
        assert (vectors(known), status(known), engine.count) == ([alone["two"]], "hit-exact", seen)
        mixed = await embed(client, "three", "four", "one", "four", dimensions=8)
        assert (status(mixed), engine.count) == ("hit-partial", seen + 1)
        assert json.loads(engine.received[-1].body)["input"] == ["four"]
        assert [vectors(mixed)[at] for at in (0, 2)] == [alone["three"], alone["one"]]
        assert vectors(mixed)[1] == vectors(mixed)[3] == vectors(await embed(client, "four", dimensions=8))[0]
        assert status(await embed(client, "four", dimensions=4)) == "miss"
        records = await running.recorded(7)
        assert records[4].closing == "settle"
        assert records[4].usage.prompt_tokens + records[4].saved.prompt_tokens == mixed.json()["usage"]["prompt_tokens"]


async def test_inputs_of_token_ids_and_base64_are_entries_of_their_own() -> None:
    async with cached() as (_, running), running.client() as client:
        assert status(await embed(client, 1, 2, 3)) == "miss"
        assert status(await embed(client, [1, 2, 3], [4])) == "hit-partial"
        assert status(await embed(client, [4])) == "hit-exact"
        assert status(await embed(client, [4], encoding_format="base64")) == "miss"
        again = await embed(client, [4], encoding_format="base64")
        assert (status(again), type(vectors(again)[0])) == ("hit-exact", str)
