"""Prompts of the registry: what engines get, what callers are told, what is counted and recorded."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.placement.explain import Would, WouldAnswer, supposed
from gateway.sync.policies import PolicyWatch
from gateway.telemetry.access_log import line_of
from policies.load import PolicyFolder
from policies.rollout.in_force import ActiveRollouts, Running
from tenancy.rights import Caps, Rights
from tests.gateway_harness import Gateway, gateway, stream

SAYS = {1: "Be brief.", 2: "Answer {{ name }} in one word. {% for part in bought %}{{ part }};{% endfor %}"}
PROMPT: dict[str, Any] = {
    "id": "help",
    "variables": {"name": {"type": "string", "max_length": 20_000, "default": "you"}, "bought": {"type": "list", "default": []}},
}
PROMPTS = [
    {"id": "help", "version": 1, "messages": [{"role": "system", "content": SAYS[1]}]},
    {**PROMPT, "version": 2, "model": "sim", "parameters": {"seed": 7}, "messages": [{"role": "system", "content": SAYS[2]}]},
    {"id": "secret", "version": 1, "messages": [{"role": "system", "content": "x"}]},
]
MODELS = [{"name": "sim", "pool": "chat"}]
POLICIES = [
    {"tenant": "acme", "prompts": ["help"], "models": MODELS, "expose_headers": True},
    {"tenant": "bolt", "models": MODELS, "prompts": [{"id": "help", "versions": [{"version": n, "weight": 1} for n in (1, 2)]}]},
    {"tenant": "*", "models": MODELS, "rules": [{"name": "long", "if": "prompt_tokens > 1000", "then": {"class": "batch"}}]},
]


@dataclass
class Site:
    """A gateway with prompts in front of one engine."""

    running: Gateway
    engine: SimEngine

    async def ask(self, tenant: str = "acme", headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        async with self.running.client(tenant) as client:
            return await client.post("/v1/chat/completions", json={"max_tokens": 2, **body}, headers=headers)

    @property
    def got(self) -> Any:
        """What the engine was sent last."""
        return msgspec.json.decode(next(one.body for one in reversed(self.engine.received) if one.path == "/v1/chat/completions"))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    rights = {"acme": Rights(caps=Caps(max_input_tokens=3000))}
    async with (
        SimEngine(SimSettings(models=("sim",))) as engine,
        gateway(engine.url, policies=POLICIES, prompts=PROMPTS, rights=rights) as running,
    ):
        yield Site(running, engine)


async def test_an_engine_gets_the_messages_and_nothing_of_the_reference(site: Site) -> None:
    reference = {"id": "help", "variables": {"name": "Ann", "bought": ["lamp"]}}
    reply = await site.ask(prompt=reference, messages=[{"role": "user", "content": "hi"}])
    assert reply.status_code == 200, reply.text
    front = {"role": "system", "content": "Answer Ann in one word. lamp;"}
    assert site.got["messages"] == [front, {"role": "user", "content": "hi"}]
    assert (site.got["model"], site.got["seed"], "prompt" in site.got) == ("sim", 7, False)
    assert reply.headers["x-tidegate-prompt"] == "help@2"
    record = site.running.records[-1]
    assert record.prompt == "help@2"
    assert b'"prompt":"help@2"' in line_of(record)
    async with site.running.client() as client:
        streamed = await stream(client, prompt=reference, max_tokens=2)
    assert (streamed.status, streamed.done, site.got["messages"][0]) == (200, True, front)
    by_header = await site.ask(headers={"x-tidegate-prompt": "help@1"}, model="sim", seed=1)
    assert by_header.status_code == 200
    assert (site.got["messages"], site.got["seed"]) == ([{"role": "system", "content": SAYS[1]}], 1)


@pytest.mark.slow
async def test_a_rollout_deals_out_versions_and_counts_them_and_whoever_names_one_gets_it(site: Site) -> None:
    half = Running("ro_1", "help-2", "help@2", "help@1", 0.5, 0.0, counting=True, interval_s=10.0)
    site.running.deps.live.rollouts = ActiveRollouts({}, {"help@2": half})
    seen = {}
    for n in range(24):
        reply = await site.ask(prompt={"id": "help"}, model="sim", messages=[{"role": "user", "content": "hi"}], user=f"caller-{n}")
        version, arm = reply.headers["x-tidegate-prompt"], reply.headers["x-tidegate-rollout"]
        assert (version, arm) in {("help@1", "help-2: canary"), ("help@2", "help-2: baseline")}
        assert site.got["messages"][0]["content"] == {"help@1": SAYS[1], "help@2": "Answer you in one word. "}[version]
        seen[n] = version
    assert set(seen.values()) == {"help@1", "help@2"}
    again = await site.ask(prompt={"id": "help"}, model="sim", messages=[{"role": "user", "content": "more"}], user="caller-0")
    assert again.headers["x-tidegate-prompt"] == seen[0]
    for record in await site.running.recorded(25):
        assert record.dealt is None
        assert record.dealt_prompt is not None
        assert record.dealt_prompt.counted
        assert record.dealt_prompt.target == record.prompt
    assert b'"rollout":"help-2","arm":"' in line_of(record)
    named = await site.ask(prompt={"id": "help", "version": 2}, messages=[{"role": "user", "content": "hi"}])
    assert (named.headers["x-tidegate-prompt"], "x-tidegate-rollout" in named.headers) == ("help@2", False)
    chosen = await site.ask(prompt={"id": "help"}, model="sim", headers={"x-tidegate-rollout": "canary"})
    assert (chosen.status_code, chosen.json()["error"]["code"]) == (403, "insufficient_permissions"), "choose_arm is not in its policy"


async def test_where_a_request_would_go_is_asked_with_its_prompt(site: Site) -> None:
    async def would(tenant: str) -> WouldAnswer:
        body = msgspec.json.encode({"prompt": {"id": "help", "version": 2, "variables": {"name": "word " * 1000}}})
        return await supposed(Would(tenant, "/v1/chat/completions", body), site.running.deps)

    found = (await would("acme")).explained
    assert found is not None
    assert (found.model, found.prompt_tokens > 1000) == ("sim", True)
    refusal = (await would("crane")).refusal
    assert refusal is not None
    assert refusal.param == "request.prompt.id"


async def test_refusals_say_what_to_change_and_nothing_of_what_others_have(site: Site) -> None:
    foreign, unknown = [(await site.ask(model="sim", prompt={"id": one})).json()["error"] for one in ("secret", "public")]
    assert foreign["code"] == "prompt_not_found"
    assert foreign == {**unknown, "message": unknown["message"].replace("public", "secret")}
    wrong = await site.ask(prompt={"id": "help", "variables": {"name": 5}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "prompt.variables.name")
    assert "expected a string of at most 20000 characters" in wrong.json()["error"]["message"]
    assert not [one for one in site.engine.received if one.path == "/v1/chat/completions"]


async def test_what_was_put_in_front_counts(site: Site) -> None:
    long = await site.ask(prompt={"id": "help", "variables": {"name": "word " * 4000}})
    assert (long.status_code, "input tokens" in long.json()["error"]["message"]) == (400, True)
    assert (await site.ask("bolt", prompt={"id": "help", "version": 2, "variables": {"name": "word " * 2000}})).status_code == 200
    [record] = [one for one in site.running.records if one.outcome == "ok"]
    assert (record.rule, record.priority_class, record.prompt) == ("long", "batch", "help@2")
    assert record.usage.prompt_tokens > 2000


@pytest.mark.slow
async def test_versions_are_dealt_out_to_end_users_who_keep_theirs(site: Site) -> None:
    seen: dict[int, set[str]] = {}
    for user in range(12):
        for _ in range(2):
            assert (await site.ask("bolt", model="sim", user=f"u{user}", prompt={"id": "help"})).status_code == 200
            seen.setdefault(user, set()).add(site.running.records[-1].prompt)
    assert all(len(one) == 1 for one in seen.values())
    assert set().union(*seen.values()) == {"help@1", "help@2"}


async def test_a_reload_of_prompts_and_policies_holds_for_the_next_request(site: Site, tmp_path: Path) -> None:
    policies, prompts = tmp_path / "policies", tmp_path / "prompts"
    policies.mkdir()
    prompts.mkdir()
    (prompts / "help@1.yaml").write_text("id: help\nversion: 1\nmessages: [{role: system, content: old}]\n")
    (policies / "acme.yaml").write_text("tenant: acme\nmodels: [{name: sim, pool: chat}]\nprompts: [help]\n")
    watch = PolicyWatch(PolicyFolder(policies, ["chat"], prompts=prompts), lambda: 0.0, lambda _: None)
    live = site.running.deps.live
    live.policies = watch.first()
    watch.follow(live)
    await site.ask(model="sim", prompt={"id": "help"})
    assert site.got["messages"] == [{"role": "system", "content": "old"}]
    (prompts / "help@2.yaml").write_text("id: help\nversion: 2\nmessages: [{role: system, content: new}]\n")
    await watch.look()
    await watch.look()
    await site.ask(model="sim", prompt={"id": "help"})
    assert (site.got["messages"][0]["content"], site.running.records[-1].prompt) == ("new", "help@2")
    (policies / "acme.yaml").write_text("tenant: acme\nmodels: [{name: sim, pool: chat}]\nprompts: [{id: help, version: 1}]\n")
    await watch.reload()
    await site.ask(model="sim", prompt={"id": "help"})
    assert site.running.records[-1].prompt == "help@1"
    (prompts / "help@1.yaml").unlink()
    assert (await watch.reload()).problem_count == 1
    assert (await site.ask(model="sim", prompt={"id": "help"})).status_code == 200
