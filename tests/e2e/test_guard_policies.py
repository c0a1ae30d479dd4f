"""Guard rules of policies through a whole gateway: what callers may ask for, and which kept answers they may get."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from policies.compile import compiled
from policies.schema import PolicyDocument
from tests.gateway_harness import Gateway, chat, gateway


def rule(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "kind": "words", "mode": "flag", "words": [f"{name} secret"], **more}


def policy(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    guards = {"guards": {"rules": list(rules)}} if rules else {}
    return {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True, **guards, **more}


@contextlib.asynccontextmanager
async def served(*policies: dict[str, Any], **options: Any) -> AsyncIterator[tuple[SimEngine, Gateway, httpx.AsyncClient]]:
    async with (
        SimEngine(SimSettings(models=("sim",), speed=20)) as engine,
        gateway(engine.url, policies=policies, **options) as running,
        running.client() as client,
    ):
        yield engine, running, client


async def ask(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(**{"temperature": 0, **fields}), headers=headers)


def status(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return reply.headers["x-tidegate-cache"]


def put(running: Gateway, *documents: dict[str, Any]) -> None:
    """Make policies active, as a reload does."""
    running.deps.live.policies = compiled([PolicyDocument.model_validate(one) for one in documents])


@pytest.mark.req("R50")
async def test_a_change_of_guard_rules_gives_no_answer_of_the_old_ones() -> None:
    old = policy(rule("a"), cache={})
    changes = [
        policy(cache={}),
        policy(rule("a"), rule("b"), cache={}),
        policy(rule("a", mode="block"), cache={}),
        policy(rule("a", words=["another"]), cache={}),
        policy(rule("a", on=["output"]), cache={}),
        policy(rule("a"), cache={}, for_model={"sim": {"guards": {"rules": [rule("c")]}}}),
        policy(rule("a"), cache={}, rules=[{"name": "r", "then": {"guards": {"rules": [rule("d")]}}}]),
    ]
    async with served(old) as (_, running, client):
        assert [status(await ask(client)) for _ in range(2)] == ["miss", "hit-exact"]
        for changed in changes:
            put(running, changed)
            assert [status(await ask(client)) for _ in range(2)] == ["miss", "hit-exact"], changed
        put(running, old)
        assert status(await ask(client)) == "hit-exact", "the old rules again, and with them their answers"


@pytest.mark.req("R50")
async def test_who_asks_for_a_rule_gets_no_answer_that_was_kept_without_it() -> None:
    async with served(policy(rule("a"), rule("extra", default_on=False), cache={})) as (_, _running, client):
        asked = {"x-tidegate-guards": "extra"}
        assert [status(await ask(client)) for _ in range(2)] == ["miss", "hit-exact"]
        assert [status(await ask(client, asked)) for _ in range(2)] == ["miss", "hit-exact"]
        assert status(await ask(client, guardrails=["extra"])) == "hit-exact", "the same rules, asked for in another way"
        assert status(await ask(client, {"x-tidegate-guards": "a"})) == "hit-exact", "a rule that applies anyway"


async def test_a_rule_that_does_not_exist_is_a_400_and_no_engine_is_asked() -> None:
    async with served(policy(rule("a"))) as (engine, _, client):
        for said, param in (({"guardrails": ["b"]}, "guardrails"), ({"metadata": {"guardrails": ["b"]}}, "guardrails")):
            reply = await ask(client, **said)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
            assert "'b'" in error["message"]
            assert "'a'" not in error["message"]
        reply = await ask(client, {"x-tidegate-guards": "a, b"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-tidegate-guards")
        assert (await ask(client, guardrails="a")).json()["error"]["param"] == "guardrails"
        assert engine.count == 0
