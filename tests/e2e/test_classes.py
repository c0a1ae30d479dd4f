"""A request's class: who may say it, where it is seen, and what engines of either kind are told of it."""

from typing import Any

import msgspec
import pytest

from backends.simengine import SimEngine, SimSettings
from domain.priority import WORDS, Class
from gateway.telemetry.access_log import line_of
from tenancy.rights import Rights
from tests.gateway_harness import chat, gateway

POLICY = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "class": "critical"}
FORGED: dict[str, str] = {"x-vllm-priority": "-9", "x-override-priority": "9", "priority": "-9"}


def sim(dialect: str) -> SimSettings:
    return SimSettings(models=("sim",), speed=2000, dialect=dialect)


@pytest.mark.req("ROUTERS-33")
@pytest.mark.parametrize(("dialect", "numbers"), [("vllm", [-2, -1, 0, 1]), ("sglang", [2, 1, 0, -1])])
async def test_engines_are_told_the_class_in_their_own_sign_and_nothing_a_caller_says(dialect: str, numbers: list[int]) -> None:
    pool = {"dialect": dialect, "engine_priority": True}
    async with SimEngine(sim(dialect)) as engine, gateway(engine.url, policies=[POLICY], pool=pool) as running, running.client() as client:
        seen = []
        for word in WORDS:
            asked = chat(max_tokens=1, priority=99, nvext={"agent_hints": {"priority": 99}})
            reply = await client.post("/v1/chat/completions", json=asked, headers={"x-tidegate-class": word, **FORGED})
            assert reply.status_code == 200
            received = engine.received[-1]
            body = msgspec.json.decode(received.body)
            seen.append(body["priority"])
            assert received.body.count(b'"priority"') == 1 and "nvext" not in body
            assert not {name for name in received.headers if b"priority" in name or b"tidegate" in name}
        assert seen == numbers
        await running.recorded(4)


@pytest.mark.req("ROUTERS-33")
async def test_engines_that_do_not_order_by_it_hear_of_no_priority_and_embeddings_carry_none() -> None:
    async with SimEngine(sim("vllm")) as engine, gateway(engine.url, policies=[POLICY]) as running, running.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=1, priority=-9))).status_code == 200
        assert b'"priority"' not in engine.received[-1].body
    pool = {"engine_priority": True}
    async with SimEngine(sim("vllm")) as engine, gateway(engine.url, policies=[POLICY], pool=pool) as running, running.client() as client:
        await client.post("/v1/embeddings", json={"model": "sim", "input": "x", "priority": -9})
        assert b'"priority"' not in engine.received[-1].body


async def test_the_class_is_the_lowest_of_what_everybody_says_and_is_seen_in_record_and_log() -> None:
    rights = {"acme": Rights(priority_class=Class.INTERACTIVE)}
    cases: list[tuple[str, dict[str, str], dict[str, Any], str, bool]] = [
        ("acme", {}, {}, "interactive", False),
        ("acme", {"x-tidegate-class": "critical"}, {}, "interactive", False),
        ("acme", {"x-tidegate-class": "default", "x-stainless-retry-count": "2"}, {}, "default", True),
        ("acme", {}, {"service_tier": "flex"}, "batch", False),
        ("bolt", {"x-stainless-retry-count": "0"}, {}, "critical", False),
    ]
    async with SimEngine(sim("vllm")) as engine, gateway(engine.url, policies=[POLICY], rights=rights) as running:
        for tenant, headers, fields, _, _ in cases:
            async with running.client(tenant) as client:
                reply = await client.post("/v1/chat/completions", json=chat(max_tokens=1, **fields), headers=headers)
                assert reply.status_code == 200
        records = await running.recorded(len(cases))
        assert [(one.priority_class, one.retry) for one in records] == [(word, retry) for _, _, _, word, retry in cases]
        lines = [msgspec.json.decode(line_of(one)) for one in records]
        assert [(line["priority_class"], line.get("retry", False)) for line in lines] == [(word, retry) for _, _, _, word, retry in cases]


async def test_a_word_that_is_no_class_is_a_400_that_names_them_and_reaches_no_engine() -> None:
    async with SimEngine(sim("vllm")) as engine, gateway(engine.url, policies=[POLICY], poll=False) as running, running.client() as client:
        reply = await client.post("/v1/chat/completions", json=chat(), headers={"x-tidegate-class": "urgent"})
        assert reply.status_code == 400
        assert "critical, interactive, default, batch" in reply.json()["error"]["message"]
        assert len(engine.received) == 0
        (record,) = await running.recorded(1)
        assert record.priority_class == ""
