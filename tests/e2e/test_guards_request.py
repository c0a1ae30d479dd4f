"""Guard rules on requests through a whole gateway: what the engine gets, what the caller gets, what is charged and cached."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from guardrails.ports import Detected
from policies.compile import compiled
from policies.schema import PolicyDocument
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import chat, gateway, stream

SIM = SimSettings(models=("sim",), speed=200)
MAILS = {"id": "mails", "kind": "pii", "types": ["email"], "mode": "redact"}
KEYS = {"id": "keys", "kind": "words", "words": ["open sesame"], "mode": "block", "on": ["input", "tool_results"]}


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class Names:
    """Knows one name, as Presidio's analyzer knows many."""

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        await asyncio.sleep(0)
        at = text.find("Bob")
        return [Detected("PERSON", 1.0, at, at + 3)] if at >= 0 else []


def policy(*rules: dict[str, Any], tenant: str = "*", **fields: Any) -> dict[str, Any]:
    models = [{"name": "sim", "pool": "chat"}]
    return {"tenant": tenant, "models": models, "expose_headers": True, "guards": {"rules": list(rules)}, **fields}


def said(*contents: str, **fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": content} for content in contents], max_tokens=3, **fields)


def got(engine: SimEngine) -> list[dict[str, Any]]:
    return [json.loads(received.body) for received in engine.received]


async def test_the_engine_gets_the_redacted_prompt_and_the_log_no_content() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(MAILS)]) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=said("write to ann@corp.io"))
        assert reply.status_code == 200
        (body,) = got(engine)
        assert body["messages"][0]["content"] == "write to [EMAIL]"
        (record,) = await running.recorded(1)
        assert record.guards is not None
        assert (record.guards.word, [(c.rule, c.kind, c.direction, c.count) for c in record.guards.counts]) == (
            "changed",
            [("mails", "email", "input", 1)],
        )
        assert "ann@corp" not in repr(record)


async def test_a_blocked_request_reaches_no_engine_and_costs_a_request_and_no_token() -> None:
    limits = [
        Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 3),
        Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 500),
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(KEYS)], limits=limits) as running:
        async with running.client() as client:
            for body in (said("Open sesame!"), said("Open sesame!", stream=True)):
                reply = await client.post("/v1/chat/completions", json=body)
                assert reply.status_code == 400
                error = reply.json()["error"]
                assert (error["code"], error["param"]) == ("content_filter", "messages[0].content")
                assert reply.headers["x-should-retry"] == "false"
                assert "sesame" not in reply.text
            assert got(engine) == []
            assert (await client.post("/v1/chat/completions", json=said("hello"))).status_code == 200, "no token was spent"
            assert (await client.post("/v1/chat/completions", json=said("hello"))).status_code == 429, "refused ones are requests"
        for record in (await running.recorded(4))[:2]:
            assert (record.outcome, record.usage.prompt_tokens, record.cost_nanousd) == ("guard_blocked", 0, 0)
            assert record.guards is not None
            assert record.guards.by == "keys"
        assert running.open_holds == 0


async def test_of_the_name_of_a_called_tool_no_json_is_asked() -> None:
    rule = {"id": "shape", "kind": "json_schema", "schema": {"type": "object"}, "mode": "block", "on": ["tool_arguments"]}
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "user", "content": "on"},
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(rule)]) as running, running.client() as client:
        for arguments, status in (("{}", 200), ("f", 400)):
            turns[1]["tool_calls"] = [CALL | {"function": {"name": "f", "arguments": arguments}}]  # type: ignore[index]
            assert (await client.post("/v1/chat/completions", json=chat(messages=turns, max_tokens=3))).status_code == status


@pytest.mark.parametrize("role", ["tool", "user"])
async def test_a_rule_looks_at_the_directions_that_it_names(role: str) -> None:
    rule = KEYS | {"on": ["tool_results"]}
    messages = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "open sesame" if role == "tool" else "shut"},
        {"role": "user", "content": "open sesame" if role == "user" else "shut"},
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(rule)]) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat(messages=messages, max_tokens=3))
        assert reply.status_code == (400 if role == "tool" else 200)


@pytest.mark.req("R50")
async def test_a_kept_answer_is_of_the_redacted_prompt_and_not_given_under_other_rules() -> None:
    names = {"id": "names", "kind": "words", "words": ["bob", "eve"], "mode": "redact"}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(names, cache={"exact": True})]) as running:
        async with running.client() as client:
            statuses = []
            for name in ("bob", "bob", "eve"):
                body = chat(messages=[{"role": "user", "content": f"tell {name}"}], temperature=0)
                statuses.append((await client.post("/v1/chat/completions", json=body)).headers["x-tidegate-cache"])
            assert statuses == ["miss", "hit-exact", "hit-exact"]
            changed = policy(names, KEYS, cache={"exact": True})
            running.deps.live.policies = compiled([PolicyDocument.model_validate(changed)])
            assert (await client.post("/v1/chat/completions", json=body)).headers["x-tidegate-cache"] == "miss"
        assert len(got(engine)) == 2


@pytest.mark.req("R48")
@pytest.mark.parametrize(
    ("mode", "on", "expected"),
    [
        ("flag", "input", ["bypass:personal"] * 2),
        ("shadow", "input", ["miss", "hit-exact"]),
        ("flag", "output", ["miss", "miss"]),
        ("redact", "output", ["miss", "miss"]),
        ("flag", "tool_results", ["miss", "hit-exact"]),
    ],
)
async def test_personal_data_of_a_request_or_an_answer_passes_by_the_cache(mode: str, on: str, expected: list[str]) -> None:
    rule = MAILS | {"mode": mode, "on": [on]}
    answer = {"structured_outputs": {"choice": ["bob@corp.io"]}, "max_tokens": 300}
    body = said("tell bob@corp.io", temperature=0) | answer
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(rule, cache={"exact": True})]) as running:
        async with running.client() as client:
            statuses = []
            for _ in range(2):
                reply = await client.post("/v1/chat/completions", json=body)
                statuses.append(reply.headers["x-tidegate-cache"])
        assert statuses == expected
        records = await running.recorded(2)
        assert [record.not_kept for record in records] == (["personal"] * 2 if on == "output" else [""] * 2)


@pytest.mark.req("R48")
async def test_the_cache_waits_for_a_detector_of_personal_data() -> None:
    rule = {"id": "names", "kind": "detector", "detector": "names", "mode": "flag", "on": ["input"]}
    names = {"kind": "presidio", "url": "http://127.0.0.1:9/analyze", "private": True}
    options: dict[str, Any] = {"policies": [policy(rule, cache={"exact": True})], "guards": {"detectors": {"names": names}}}
    async with SimEngine(SIM) as engine, gateway(engine.url, **options) as running, running.client() as client:
        object.__setattr__(running.deps, "detectors", {"names": Names()})  # no analyzer runs here
        statuses = []
        for text in ("ask Bob", "ask Bob", "ask nobody", "ask nobody"):
            reply = await client.post("/v1/chat/completions", json=said(text, temperature=0) | {"max_tokens": 300})
            statuses.append(reply.headers["x-tidegate-cache"])
        assert statuses == ["bypass:personal", "bypass:personal", "miss", "hit-exact"]


async def test_what_an_answer_would_restore_is_never_kept() -> None:
    rule = MAILS | {"restore": True}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(rule, cache={"exact": True})]) as running:
        async with running.client() as client:
            for _ in range(2):
                reply = await client.post("/v1/chat/completions", json=said("tell bob@corp.io", temperature=0))
                assert reply.headers["x-tidegate-cache"] == "bypass:placeholders"
        assert len({body["messages"][0]["content"] for body in got(engine)}) == 2


async def test_a_fallback_model_has_its_own_rules() -> None:
    models = [
        {"name": "sim", "pool": "chat", "fallback": [{"to": "other", "on": ["error", "content_filter"]}]},
        {"name": "other", "pool": "chat"},
    ]
    written = {
        "tenant": "*",
        "models": models,
        "guards": {"rules": [MAILS]},
        "for_model": {"sim": {"guards": {"rules": [KEYS]}}},
        "expose_headers": True,
    }
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[written]) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=said("open sesame to ann@corp.io"))
        assert (reply.status_code, reply.json()["model"]) == (200, "other")
        assert got(engine)[0]["messages"][0]["content"] == "open sesame to [EMAIL]"
        (record,) = await running.recorded(1)
        assert (record.fell_back[0].outcome, record.model) == ("guard_blocked", "other")
        refused = record.fell_back[0].guards
        assert refused is not None
        assert (refused.word, refused.by) == ("block", "keys"), "for the audit and the metrics"


async def test_where_no_model_may_answer_the_record_has_what_the_rules_of_each_said_once() -> None:
    models = [{"name": "sim", "pool": "chat", "fallback": [{"to": "other", "on": ["content_filter"]}]}, {"name": "other", "pool": "chat"}]
    birds = {"id": "birds", "kind": "words", "words": ["bluebird"], "mode": "block"}
    for_model = {"sim": {"guards": {"rules": [KEYS]}}, "other": {"guards": {"rules": [birds]}}}
    written = {"tenant": "*", "models": models, "for_model": for_model}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[written]) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=said("open sesame, bluebird"))
        assert (reply.status_code, "'keys'" in reply.json()["error"]["message"]) == (400, True)
        (record,) = await running.recorded(1)
        assert record.guards is not None
        assert (record.outcome, record.model, record.guards.by) == ("guard_blocked", "sim", "keys")
        assert [(step.model, step.guards and step.guards.by) for step in record.fell_back] == [("sim", None), ("other", "birds")]


async def test_after_a_failure_the_next_engine_gets_the_redacted_prompt_too() -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two, gateway(one.url, two.url, policies=[policy(MAILS)]) as running:
        one.misbehave([FaultRule("status_500", first=1)])
        two.misbehave([FaultRule("status_500", first=1)])
        async with running.client() as client:
            seen = await stream(client, messages=said("for ann@corp.io")["messages"], max_tokens=2)
            assert seen.status in (200, 502)
        contents = {body["messages"][0]["content"] for engine in (one, two) for body in got(engine)}
        assert contents == {"for [EMAIL]"}


async def test_embeddings_and_completions_pass_the_same_rules() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=[policy(MAILS, KEYS)]) as running, running.client() as client:
        await client.post("/v1/embeddings", json={"model": "sim", "input": ["ann@corp.io", "plain"]})
        await client.post("/v1/completions", json={"model": "sim", "prompt": "to ann@corp.io", "max_tokens": 2})
        first, second = got(engine)
        assert (first["input"], second["prompt"]) == (["[EMAIL]", "plain"], "to [EMAIL]")
        refused = await client.post("/v1/embeddings", json={"model": "sim", "input": ["a", "open sesame"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[1]")
