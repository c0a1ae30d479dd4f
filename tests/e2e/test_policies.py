"""What a policy file says of projects, models, aliases and shares, as callers feel it."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from backends.simengine import SimEngine, SimSettings
from domain.ask import Endpoint
from gateway.http.openai import interpret
from gateway.telemetry.access_log import line_of
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tenancy.rights import Rights
from tests.gateway_harness import Gateway, chat, gateway

SHARED = {"name": "chat", "pools": [{"pool": "old", "weight": 3}, {"pool": "new", "weight": 1}]}
ACME: Mapping[str, Any] = {
    "tenant": "acme",
    "models": [SHARED, {"name": "gpt-4o", "alias_of": "chat"}, {"name": "quiet", "pool": "old"}],
    "for_project": {"default": {"class": "batch"}},
    "for_model": {"quiet": {"expose_headers": False}},
}
EVERYONE = {"tenant": "*", "models": [{"name": "sim", "pool": "old"}], "class": "interactive", "expose_headers": True}


@contextlib.asynccontextmanager
async def served(rules: Sequence[Mapping[str, Any]] = (), **options: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = {name: (await stack.enter_async_context(SimEngine(SimSettings(models=(name,))))).url for name in ("old", "new")}
        pools = [{"name": name, "model": name, "backends": [{"id": f"{name}-1", "url": url}]} for name, url in urls.items()]
        running = await stack.enter_async_context(gateway(pools=pools, policies=[{**ACME, "rules": list(rules)}, EVERYONE], **options))
        yield running, await stack.enter_async_context(running.client())


async def ask(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    reply = await client.post("/v1/chat/completions", json=chat(**{"model": "chat", "max_tokens": 2, **more}))
    assert reply.status_code == 200, reply.text
    return reply


async def test_conversations_are_dealt_to_pools_by_weight_and_stay() -> None:
    async with served() as (_, client):
        homes: Counter[str] = Counter()
        for n in range(40):
            seen = {(await ask(client, user=f"caller-{n}")).headers["x-tidegate-backend"] for _ in range(2)}
            assert len(seen) == 1
            homes.update(seen)
    assert set(homes) == {"old-1", "new-1"}
    assert 18 <= homes["old-1"] <= 39  # 30 of 40, give or take four standard deviations


async def test_an_alias_answers_is_billed_and_limited_as_the_model_it_stands_for() -> None:
    prices = [Price("chat", "chat", ANY_REVISION, 0.0, TokenRates(output=1_000_000))]
    async with served(prices=prices, rights={"acme": Rights(models=frozenset({"chat"}))}) as (running, client):
        assert {one["id"] for one in (await client.get("/v1/models")).json()["data"]} == {"chat", "gpt-4o"}
        reply = await ask(client, model="gpt-4o")
        record = running.records[-1]
    assert reply.json()["model"] == "chat"
    assert (record.model, record.asked_model, record.price_id) == ("chat", "gpt-4o", "chat")
    assert b'"asked_model":"gpt-4o"' in line_of(record)


async def test_whoever_may_not_use_the_model_may_not_use_its_alias() -> None:
    async with served(rights={"acme": Rights(models=frozenset({"gpt-4o"}))}) as (_, client):
        assert (await client.get("/v1/models")).json()["data"] == []
        refused = await client.post("/v1/chat/completions", json=chat(model="gpt-4o"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_projects_and_a_models_requests_are_treated_as_their_policy_says() -> None:
    async with served() as (running, client), running.client("crane") as other:
        await ask(client)
        mine = running.records[-1]
        await ask(other, model="sim")
        theirs = running.records[-1]
        quiet = await ask(client, model="quiet")
    assert (mine.priority_class, theirs.priority_class) == ("batch", "interactive")
    assert [name for name in quiet.headers if name.startswith("x-tidegate")] == ["x-tidegate-request-id"]


async def test_the_first_rule_that_matches_counts_and_is_seen() -> None:
    rules = [
        {"name": "tests", "if": 'headers["x-run"] == "test"', "then": {"model": "quiet", "class": "critical"}},
        {"name": "long", "if": "max_output_tokens > 2", "then": {"class": "interactive"}},
    ]
    async with served(rules=rules) as (running, client):
        said = []
        for tokens, headers in ((2, {}), (3, {}), (3, {"x-run": "test"})):
            reply = await client.post("/v1/chat/completions", json=chat(model="chat", max_tokens=tokens), headers=headers)
            assert reply.status_code == 200
            record = running.records[-1]
            said.append((record.rule, reply.json()["model"], record.priority_class))
        decision = running.deps.decisions.find(record.request_id)
        line = line_of(record)
    assert said == [("", "chat", "batch"), ("long", "chat", "interactive"), ("tests", "quiet", "critical")]
    assert decision is not None
    assert (decision.rule, decision.asked_model, decision.pool) == ("tests", "chat", "old")
    assert b'"rule":"tests"' in line


async def test_parameters_are_given_bounded_and_refused() -> None:
    said = {"defaults": {"seed": 7}, "at_most": {"temperature": 1}, "refused": ["seed"]}
    async with served(rules=[{"name": "all", "then": {"parameters": said}}]) as (_, client):
        assert (await client.post("/v1/chat/completions", json=chat(model="chat", max_tokens=2))).status_code == 200
        hot = await client.post("/v1/chat/completions", json=chat(model="chat", temperature=1.5))
        seeded = await client.post("/v1/chat/completions", json=chat(model="chat", seed=1))
    assert (hot.status_code, hot.json()["error"]["param"]) == (400, "temperature")
    assert (seeded.status_code, seeded.json()["error"]["param"]) == (403, "seed")


async def test_the_model_list_tells_what_a_model_is_for_takes_holds_and_costs() -> None:
    prices = [Price("p", "vision", ANY_REVISION, 0.0, TokenRates(200_000_000, 200_000_000, 6_000_000_000, 6_000_000_000))]
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(SimEngine(SimSettings(models=("m",), max_model_len=4096)))
        backends = [{"id": "e", "url": engine.url}]
        pools = [
            {"name": "sees", "model": "m", "image_tokens": 1500, "backends": backends},
            {"name": "embeds", "model": "m", "kind": "embedding", "context_tokens": 512, "backends": [{"id": "f", "url": engine.url}]},
        ]
        models: list[dict[str, Any]] = [{"name": "vision", "pool": "sees"}, {"name": "free", "pool": "embeds"}]
        acme = {"tenant": "acme", "models": models, "show_prices": True}
        everyone = {"tenant": "*", "models": models}
        running = await stack.enter_async_context(gateway(pools=pools, policies=[acme, everyone], prices=prices))
        client, other = await stack.enter_async_context(running.client()), await stack.enter_async_context(running.client("bolt"))
        free, vision = (await client.get("/v1/models")).json()["data"]
        assert vision == (await client.get("/v1/models/vision")).json()
        assert (vision["type"], vision["max_model_len"], vision["context_length"]) == ("chat", 4096, 4096), "as the engine says"
        assert vision["architecture"]["input_modalities"] == ["text", "image"]
        assert (vision["pricing"]["prompt"], vision["pricing"]["completion"]) == ("0.0000002", "0.000006")
        assert (free["type"], free["max_model_len"], "pricing" in free) == ("embedding", 512, False), "it has no price"
        assert "pricing" not in (await other.get("/v1/models/vision")).json()
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
        body = {"model": "vision", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]}
        prompt = await running.deps.prompts.read(interpret(Endpoint.CHAT, json.dumps(body).encode()), "sees", 0, "acme")
        assert prompt.tokens > 1500, "placing counts the image, too"
