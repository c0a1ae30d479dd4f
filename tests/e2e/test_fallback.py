"""Another model answers where the one that was asked for cannot, as its tenant's policy says: what is reserved, charged and told then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from domain.usage import NO_USAGE
from gateway.ledger.writer import usage_event
from gateway.record import Fell
from gateway.telemetry.access_log import line_of
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tenancy.rights import Rights
from tests.gateway_harness import Gateway, chat, gateway, no_engine, stream
from tests.scripted_server import Peer, scripted
from tests.timing import stolen_time, until

ENGINES: dict[str, dict[str, Any]] = {
    "small": {},
    "short": {"max_model_len": 64},
    "broken": {"faults": (FaultRule(name="status_500"),)},
    "midway": {"faults": (FaultRule(name="crash_mid_stream", after=3),)},
    "full": {"speed": 0.02},
    "mute": {"faults": (FaultRule(name="frozen"),)},
}
MODELS: list[dict[str, Any]] = [
    {"name": "big", "pool": "gone", "fallback": [{"to": "secret"}, {"to": "small"}]},
    {"name": "alias", "alias_of": "big"},
    {"name": "secret", "pool": "small"},
    {"name": "only", "pool": "gone", "fallback": [{"to": "secret"}]},
    {"name": "short", "pool": "short", "fallback": [{"to": "broken", "on": ["no_capacity"]}, {"to": "small", "on": ["context_too_long"]}]},
    {"name": "broken", "pool": "broken", "fallback": [{"to": "short", "on": ["error"]}, {"to": "small", "on": ["context_too_long"]}]},
    {"name": "midway", "pool": "midway", "fallback": [{"to": "small"}]},
    {"name": "mute", "pool": "mute", "fallback": [{"to": "small", "on": ["error"]}]},
    {"name": "filtered", "pool": "filter", "fallback": [{"to": "small", "on": ["content_filter"]}]},
    {"name": "full", "pool": "full", "fallback": [{"to": "small", "on": ["context_too_long"]}, {"to": "busy"}]},
    {"name": "busy", "pool": "full"},
    {"name": "away", "pool": "gone", "fallback": [{"to": "full", "on": ["no_capacity"]}, {"to": "broken"}]},
    {"name": "limited", "pool": "gone", "fallback": [{"to": "strict"}, {"to": "small"}]},
    {"name": "strict", "pool": "short"},
    {"name": "small", "pool": "small"},
]
POLICY = {
    "tenant": "*",
    "models": MODELS,
    "expose_headers": True,
    "max_wait_s": 0.3,
    "for_model": {"strict": {"parameters": {"refused": ["temperature"]}}, "small": {"max_output_tokens": 7}},
}


async def filters(peer: Peer) -> None:
    """An engine whose filter refuses every prompt."""
    while request := await peer.request():
        get = request.startswith(b"GET")
        body = b'{"object":"list","data":[{"id":"filter-1","object":"model"}]}'
        if not get:
            body = b'{"error":{"message":"The response was filtered","type":null,"param":"prompt","code":"content_filter"}}'
        status = b"200 OK" if get else b"400 Bad Request"
        await peer.send(b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


@contextlib.asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = {"gone": await stack.enter_async_context(no_engine())}
        for name, more in ENGINES.items():
            engine = SimEngine(SimSettings(models=(f"{name}-1",), **{"speed": 2000.0, **more}))
            urls[name] = (await stack.enter_async_context(engine)).url
        urls["filter"] = (await stack.enter_async_context(scripted(filters))).url
        pools = [
            {
                "name": name,
                "model": f"{name}-1",
                "backends": [{"id": f"{name}-e", "url": url, "max_in_flight": 1 if name == "full" else 64}],
            }
            for name, url in urls.items()
        ]
        running = await stack.enter_async_context(gateway(pools=pools, policies=[POLICY], **options))
        yield running, await stack.enter_async_context(running.client())


async def ask(client: httpx.AsyncClient, model: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = chat(**{"model": model, "max_tokens": 5, **more})
    return await client.post("/v1/chat/completions", json=body, headers=headers)


async def used(running: Gateway, model: str) -> dict[tuple[str, Meter], tuple[int, int]]:
    """How the limits of a request of acme's for a model stand: used, and held of it."""
    live = running.deps.live
    caller = live.directory.keys.authenticate(running.keys["acme"], 0.0)
    assert caller is not None
    groups = live.directory.grant(caller.key_id, 0.0).groups(model)
    states = [state for group in groups for state in await running.deps.counters.look(group)]
    return {(str(one.line.limit.scope), Meter(one.line.meter)): (one.used, one.held) for one in states}


def price(model: str, micro: int) -> Price:
    return Price(model, model, ANY_REVISION, 0.0, TokenRates(output=micro * 1_000_000))


def limit(level: Level, name: str, meter: Meter, amount: int, window: Window = Window.DAY) -> Limit:
    return Limit(Scope(level, name), meter, window, amount)


LIMITS = [
    limit(Level.TENANT, "acme", Meter.TOKENS, 100_000),
    limit(Level.TENANT, "acme", Meter.REQUESTS, 100),
    limit(Level.TENANT, "acme", Meter.CONCURRENT_REQUESTS, 9, Window.NOW),
    limit(Level.MODEL, "big", Meter.TOKENS, 100_000),
    limit(Level.MODEL, "small", Meter.OUTPUT_TOKENS, 50_000),
]


async def test_what_answers_is_reserved_charged_and_told_and_what_could_not_leaves_nothing() -> None:
    rights = {"acme": Rights(models=frozenset({"big", "small", "only"}))}
    async with served(prices=[price("big", 1000), price("small", 10)], limits=LIMITS, rights=rights) as (running, client):
        reply = await ask(client, "alias", {"x-request-id": "mine"})
        assert (reply.status_code, reply.json()["model"]) == (200, "small")
        assert (reply.headers["x-tidegate-fallback"], reply.headers["x-tidegate-pool"]) == ("big=no_capacity", "small")
        record = running.records[-1]
        assert (record.model, record.asked_model, record.pool, record.backend) == ("small", "alias", "small", "small-e")
        assert record.fell_back == (Fell("big", "small", "no_capacity", "no_backend"),), "what the caller may not use is passed over"
        assert b'"fell_back":"big: no_backend"' in line_of(record)
        row = usage_event(record)
        assert row is not None
        assert (row.model, row.asked_model, row.cost_nanousd, row.price_id) == ("small", "alias", 50, "small")
        assert (row.closing, row.request_id, row.usage.completion_tokens) == ("settle", record.own_id, 5)
        total = row.usage.prompt_tokens + 5
        assert await used(running, "big") == {
            ("tenant acme", Meter.TOKENS): (total, 0),
            ("tenant acme", Meter.REQUESTS): (1, 0),
            ("tenant acme", Meter.CONCURRENT_REQUESTS): (0, 0),
            ("model big", Meter.TOKENS): (0, 0),
        }
        assert (await used(running, "small"))["model small", Meter.OUTPUT_TOKENS] == (5, 0)
        told = running.deps.decisions.find("mine", "acme")
        assert told is not None
        assert (told.model, told.asked_model, told.fell_back) == ("small", "alias", ("big: no_backend",))
        uncapped = await ask(client, "big", max_tokens=None)
        assert uncapped.json()["usage"]["completion_tokens"] == 7, "it is treated as requests for the model that answers are"
        never = await ask(client, "big", {"x-tidegate-degrade": "never"})
        assert (never.status_code, running.records[-1].fell_back) == (503, ()), "it wants this model or nothing"
        only = await ask(client, "only")
        assert (only.status_code, only.json()["error"]["code"]) == (503, "no_backend")
        assert (running.records[-1].model, running.records[-1].fell_back) == ("only", ())
        assert running.open_holds == 0


async def test_each_condition_leads_to_the_models_that_are_named_for_it() -> None:
    long = [{"role": "user", "content": "word " * 400}]
    async with served() as (running, client):
        assert (await ask(client, "short")).json()["model"] == "short"
        assert running.records[-1].fell_back == ()
        assert (await ask(client, "short", messages=long)).json()["model"] == "small"
        assert running.records[-1].fell_back == (Fell("short", "small", "context_too_long", "context_too_long"),)
        assert (await ask(client, "filtered")).json()["model"] == "small"
        assert running.records[-1].fell_back == (Fell("filtered", "small", "content_filter", "content_filtered"),)
        reply = await ask(client, "broken")
        assert (reply.json()["model"], reply.headers["x-tidegate-fallback"]) == ("short", "broken=error")
        assert running.records[-1].fell_back == (Fell("broken", "short", "error", "engine_error"),)
        assert (await ask(client, "broken", messages=long)).json()["model"] == "small", "by what became of any before it"
        assert [one.model for one in running.records[-1].fell_back] == ["broken", "short"]
        temperature = await ask(client, "limited", temperature=0.5)
        assert temperature.json()["model"] == "small", "the one between does not let it be set"
        assert (await ask(client, "limited")).json()["model"] == "strict"


async def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    async with served() as (running, client):
        seen = await stream(client, model="midway", max_tokens=50)
        assert (seen.status, seen.clean, seen.done, len(seen.errors)) == (200, False, False, 1)
        assert seen.text
        assert (running.records[-1].model, running.records[-1].fell_back) == ("midway", ())
        assert (await stream(client, model="big", max_tokens=5)).done, "one that has not may be"
        assert running.records[-1].fell_back == (Fell("big", "secret", "no_capacity", "no_backend"),)


@contextlib.asynccontextmanager
async def all_taken(running: Gateway, client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Somebody has the full pool's only place for as long as this lasts."""
    held = asyncio.create_task(ask(client, "busy", max_tokens=3000))
    try:
        await until(lambda: running.deps.pool_states.total() == 1)
        yield
    finally:
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    await until(lambda: not running.open_holds)


async def test_a_head_that_a_heartbeat_has_sent_does_not_keep_another_model_from_answering() -> None:
    engines = {"first_token_base_s": 0.4, "first_token_cap_s": 0.5, "heartbeat_s": 0.1}
    async with served(engines=engines, limits=LIMITS) as (running, client), stolen_time() as stolen:
        seen = await stream(client, model="mute", max_tokens=5)
        assert seen.raw.startswith(b": ping")
        assert (seen.status, seen.done, {event["model"] for event in seen.events}) == (200, True, {"small"})
        record = running.records[-1]
        assert record.fell_back == (Fell("mute", "small", "error", "first_token_timeout"),)
        assert (record.attempts, record.backend, record.overhead_s < 0.2 + stolen()) == (1, "small-e", True), (
            "what the first took is not ours"
        )
        assert (await used(running, "small"))["tenant acme", Meter.REQUESTS] == (1, 0)


async def test_where_none_can_answer_the_caller_hears_of_the_one_it_asked_for() -> None:
    async with served(limits=LIMITS) as (running, client), all_taken(running, client):
        reply = await ask(client, "away")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_backend")
        record = running.records[-1]
        assert (record.outcome, record.model, record.asked_model, record.pool) == ("no_backend", "away", "", "gone")
        words = [(one.model, one.to, one.on, one.outcome) for one in record.fell_back]
        assert words == [
            ("away", "full", "no_capacity", "no_backend"),
            ("full", "broken", "no_capacity", "overloaded"),
            ("broken", "", "", "engine_error"),
        ]
        assert (record.usage, record.closing, record.cost_nanousd) == (NO_USAGE, "release", 0)
        row = usage_event(record)
        assert row is not None
        assert (row.model, row.outcome, row.asked_model, row.request_id) == ("away", "no_backend", "", record.own_id)
        assert (await used(running, "small"))["tenant acme", Meter.REQUESTS] == (1, 1), "that of the one under way"


async def test_all_of_a_chain_wait_no_longer_than_one_may() -> None:
    limits = [*LIMITS, limit(Level.MODEL, "busy", Meter.REQUESTS, 1)]
    async with served(limits=limits) as (running, client), all_taken(running, client), stolen_time() as stolen:
        full = await ask(client, "full")
        assert running.records[-1].queue_s < 0.5 + stolen(), "0.3 s for both of them together"
        assert full.json()["error"]["code"] == "overloaded", "not the limit of the model that stands in"
        late = await ask(client, "away", {"x-tidegate-timeout-s": "0.000001"})
        assert (late.status_code, running.records[-1].fell_back) == (503, ()), "its caller needs no engine by now"
        short = await ask(client, "away", {"x-tidegate-timeout-s": "0.1"})
        assert (short.status_code, running.records[-1].queue_s < 0.25 + stolen()) == (503, True)


@pytest.mark.req("R11")
async def test_a_pool_whose_every_engine_fails_is_answered_for_by_the_next_model_and_so_is_the_same_request_again() -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            name: [
                await stack.enter_async_context(SimEngine(SimSettings(models=(f"{name}-1",), speed=2000.0, faults=faults)))
                for _ in range(count)
            ]
            for name, count, faults in (
                ("two", 2, (FaultRule(name="status_500"),)),
                ("three", 3, (FaultRule(name="reset_before_headers"),)),
                ("small", 1, ()),
            )
        }
        pools = [
            {"name": name, "model": f"{name}-1", "backends": [{"id": f"{name}-{i}", "url": one.url} for i, one in enumerate(members)]}
            for name, members in engines.items()
        ]
        models: list[dict[str, Any]] = [
            {"name": "two", "pool": "two", "fallback": [{"to": "small", "on": ["error"]}]},
            {"name": "three", "pool": "three", "fallback": [{"to": "small", "on": ["error"]}]},
            {"name": "small", "pool": "small"},
        ]
        policies = [{"tenant": "*", "models": models, "expose_headers": True}]
        running = await stack.enter_async_context(gateway(pools=pools, policies=policies))
        client = await stack.enter_async_context(running.client())
        for name in ("two", "three"):
            for again in range(3):  # the official clients send a failed request up to three times
                reply = await ask(client, name)
                assert (reply.status_code, reply.headers.get("x-tidegate-fallback")) == (200, f"{name}=error"), (name, again, reply.text)
        tries = [sum(one.count for one in engines[name]) for name in ("two", "three")]
        assert tries == [4, 4], "two for the first, one for each repeat of a request that two engines have failed"
        assert not running.deps.live.suspects.guilty, "no engine has died"
