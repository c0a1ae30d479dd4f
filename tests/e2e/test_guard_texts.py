"""`POST /v1/guard` and `POST /v1/moderations` through a whole gateway: whose rules judge, what it costs, and who is refused."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.http.openai.guard_texts import OPENAI_CATEGORIES
from gateway.ledger.writer import usage_event
from gateway.request.guard_texts import MAX_BODY_BYTES
from gateway.telemetry.families import DETECTOR_RESULTS
from guardrails.ports import Detected, DetectorAway
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.rights import Rights
from tests.e2e.test_serve import serving
from tests.gateway_harness import Gateway, gateway
from tests.timing import HANG_S

SIM = SimSettings(models=("sim",), speed=2000)
MAIL = "write to ann@example.com"
RULES = [
    {"id": "bombs", "kind": "words", "mode": "block", "words": ["bomb"], "on": ["input", "output", "tool_results"]},
    {"id": "people", "kind": "pii", "mode": "redact", "types": ["email"]},
    {"id": "tone", "kind": "words", "mode": "flag", "words": ["rude"]},
    {"id": "trial", "kind": "words", "mode": "shadow", "words": ["hello"]},
    {"id": "asked", "kind": "words", "mode": "block", "words": ["asked for"], "default_on": False},
]
POLICIES = [
    {
        "tenant": "acme",
        "models": [{"name": "sim", "pool": "chat"}],
        "guards": {"rules": RULES},
        "for_model": {"sim": {"guards": {"rules": [{"id": "of-sim", "kind": "words", "mode": "block", "words": ["simulated"]}]}}},
    },
    {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]},
]


@pytest.fixture
async def running() -> AsyncIterator[Gateway]:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES) as made:
        yield made
        assert not engine.received, "nothing is sent to an engine"
        assert made.open_holds == 0


async def ask(running: Gateway, path: str = "/v1/guard", tenant: str = "acme", **fields: Any) -> tuple[int, dict[str, Any]]:
    async with running.client(tenant) as client:
        reply = await client.post(path, json=fields)
        return reply.status_code, reply.json()


@pytest.mark.parametrize("form", ["/v1/guard", "/v1/guard/", "/openai/v1/guard"])
async def test_each_text_gets_its_verdict(running: Gateway, form: str) -> None:
    status, answer = await ask(running, form, input=["the sea", "hello", MAIL, "how rude", "a BOMB"])
    assert status == 200
    assert [result["action"] for result in answer["results"]] == ["pass", "pass", "change", "flag", "block"]
    assert (answer["action"], len(answer["version"])) == ("block", 64)
    assert [result["text"] for result in answer["results"]] == ["the sea", "hello", "write to [EMAIL]", "how rude", None]
    (found,) = answer["results"][1]["findings"]
    assert (found["rule"], found["mode"]) == ("trial", "shadow")
    (found,) = answer["results"][4]["findings"]
    assert (found["rule"], found["begin"], found["end"]) == ("bombs", 2, 6)


async def test_directions_models_and_rules_that_are_asked_for(running: Gateway) -> None:
    assert (await ask(running, input="a bomb", direction="tool_arguments"))[1]["action"] == "pass", "no rule looks there"
    messages = [{"role": "user", "content": "what is it?"}, {"role": "tool", "tool_call_id": "1", "content": "a bomb"}]
    _, answer = await ask(running, input={"messages": messages})
    assert {result["path"]: result["action"] for result in answer["results"]} == {
        "input.messages[0].content": "pass",
        "input.messages[1].content": "block",
    }
    assert (await ask(running, input="simulated"))[1]["action"] == "pass"
    assert (await ask(running, input="simulated", model="sim"))[1]["action"] == "block"
    assert (await ask(running, input={"model": "sim", "prompt": "simulated"}))[1]["action"] == "block"
    assert (await ask(running, input="as asked for"))[1]["action"] == "pass"
    assert (await ask(running, input="as asked for", guardrails=["asked"]))[1]["action"] == "block"
    status, answer = await ask(running, input="a", guardrails=["nothing"])
    assert (status, answer["error"]["param"]) == (400, "guardrails")
    status, answer = await ask(running, input="a", model="other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_calls_of_tools_in_a_request_are_judged_by_the_rules_over_calls() -> None:
    tools = {"id": "tools", "kind": "tools", "mode": "block", "on": ["tool_arguments"], "allow": ["look_up"]}
    policies = [{"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "guards": {"rules": [tools]}}]
    calls = [{"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("look_up", "delete_all")]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=policies) as running:
        _, answer = await ask(running, input={"messages": messages})
        assert answer["action"] == "block"
        judged = {result["path"]: (result["action"], result["by"]) for result in answer["results"] if result["text"] is None}
        assert sorted(judged.values(), key=str) == [("block", "tools"), ("pass", None)]
        assert all(path.startswith("input.messages[1].tool_calls[") for path in judged)


async def test_a_tenant_is_judged_by_its_own_rules(running: Gateway) -> None:
    _, answer = await ask(running, tenant="bolt", input="a bomb")
    assert (answer["action"], answer["version"]) == ("pass", "")
    assert (await ask(running, "/v1/moderations", "bolt", input="a bomb"))[1]["results"][0]["flagged"] is False
    assert (await ask(running, tenant="bolt", input="a", guardrails=["bombs"]))[0] == 400


async def test_a_long_body_is_judged_and_a_longer_one_is_refused(running: Gateway) -> None:
    _, answer = await ask(running, input="sea " * 100_000 + "bomb")
    assert answer["action"] == "block"
    status, _ = await ask(running, input="a" * MAX_BODY_BYTES)
    assert status == 413


async def test_who_may_ask(running: Gateway) -> None:
    async with running.client() as client:
        for path in ("/v1/guard", "/v1/moderations"):
            assert (await client.post(path, json={"input": "a"}, headers={"authorization": "Bearer wrong"})).status_code == 401
            assert (await client.get(path)).headers["allow"] == "POST"
            assert (await client.post(path, content=b"input=a")).status_code == 415
            assert (await client.post(path, json={"input": 7})).status_code == 400
            assert (await client.post(f"{path}/x", json={"input": "a"})).status_code == 404
            assert "Set base_url" in (await client.post(path.removeprefix("/v1"), json={"input": "a"})).json()["error"]["message"]
    assert all(record.guards is None for record in running.records), "what is only tried is counted nowhere"


async def test_rights_on_endpoints_hold() -> None:
    rights = {"acme": Rights(endpoints=frozenset({"/v1/moderations"}))}
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES, rights=rights) as running:
        assert (await ask(running, input="a"))[0] == 403
        assert (await ask(running, "/v1/moderations", input="a"))[0] == 200


async def test_a_judgement_is_a_request_and_uses_no_tokens() -> None:
    limits = [
        Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.MINUTE, 3),
        Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 1),
    ]
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=POLICIES, limits=limits) as running:
        async with running.client() as client:
            first = await client.post("/v1/guard", json={"input": "a bomb"})
            assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "2")
            assert first.headers["x-ratelimit-remaining-tokens"] == "1"
            assert (await client.post("/v1/guard", json={"input": 7})).status_code == 400, "counts towards no limit"
            await client.post("/v1/guard", json={"input": "a"})
            await client.post("/v1/moderations", json={"input": "a"})
            refused = await client.post("/v1/moderations", json={"input": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert "retry-after" in refused.headers
        record = running.records[0]
        booked = usage_event(record)
        assert booked is not None, "the ledger has it, so that limits that are compared with the ledger keep it"
        assert (booked.endpoint, booked.closing, booked.units, booked.cost_nanousd) == ("/v1/guard", "release", 0, 0)
        assert usage_event(running.records[-1]) is None
        assert running.open_holds == 0


class Shield:
    """A detector that finds its word, or is away."""

    def __init__(self) -> None:
        self.away = False
        self.asked: list[tuple[str, str, str]] = []

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        self.asked.append((text, direction, tenant))
        await asyncio.sleep(0)
        if self.away:
            raise DetectorAway("timeout")
        at = text.find("fight")
        return [] if at < 0 else [Detected("violence", 0.9, at, at + 5)]


def detecting(mode: str, on_error: str | None = "closed") -> list[dict[str, Any]]:
    shield = {"id": "shield", "kind": "detector", "detector": "shield", "mode": mode, "on_error": on_error}
    return [{"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "guards": {"rules": [RULES[1], shield]}}]


async def test_detectors_are_asked_about_what_other_rules_let_pass() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, policies=detecting("redact")) as running:
        shield = Shield()
        object.__setattr__(running.deps, "detectors", {"shield": shield})
        _, answer = await ask(running, input=[f"{MAIL} or fight", "the sea"])
        assert [result["action"] for result in answer["results"]] == ["change", "pass"]
        assert answer["results"][0]["text"] == "write to [EMAIL] or [VIOLENCE]"
        assert ("write to [EMAIL] or fight", "input", "acme") in shield.asked
        many = 200
        before = len(shield.asked)
        _, answer = await ask(running, input=[f"fight {at}" for at in range(many)])
        assert len(shield.asked) - before == many
        assert {result["action"] for result in answer["results"]} == {"change"}, "every text is seen, however many there are"


async def test_a_detector_that_is_away_refuses_where_its_rule_says_so() -> None:
    for on_error, action, status in (("closed", "block", 503), ("open", "pass", 200)):
        async with SimEngine(SIM) as engine, gateway(engine.url, policies=detecting("block", on_error)) as running:
            shield = Shield()
            shield.away = True
            object.__setattr__(running.deps, "detectors", {"shield": shield})
            _, answer = await ask(running, input="the sea")
            (result,) = answer["results"]
            assert (result["action"], result["failed"]) == (action, ["shield"])
            assert (await ask(running, "/v1/moderations", input="the sea"))[0] == status


async def test_the_official_client_reads_moderations(running: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.keys["acme"], max_retries=0) as client:
        one = await client.moderations.create(input=MAIL)
        (result,) = one.results
        assert one.id.startswith("modr-") and one.model == "tidegate-guards"
        assert result.flagged and result.categories.violence is False and result.categories.sexual_minors is False
        assert result.category_scores.self_harm_intent == 0.0
        assert result.category_applied_input_types.hate == ["text"]
        shown = result.categories.model_dump(by_alias=True)
        assert shown["email"] is True
        assert shown.keys() >= set(OPENAI_CATEGORIES)
        several = await client.moderations.create(input=["the sea", "a bomb"], model="omni-moderation-latest")
        assert (several.model, [result.flagged for result in several.results]) == ("omni-moderation-latest", [False, True])
        parts = await client.moderations.create(input=[{"type": "text", "text": "the sea"}, {"type": "text", "text": "a bomb"}])
        assert [result.flagged for result in parts.results] == [True]
        with pytest.raises(openai.BadRequestError, match="parts of the type text alone"):
            await client.moderations.create(input=[{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])
        with pytest.raises(openai.NotFoundError):
            await client.moderations.create(input="a", model="other")
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.moderations.create(input="a")


DETECTING = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
policies: guarded
pools:
  - name: chat
    model: sim
    backends:
      - {{id: e0, url: "{url}"}}
  - name: guards
    model: sim-guard
    backends:
      - {{id: g0, url: "{backend}"}}
guards:
  detectors:
    harm: {{kind: guard_model, pool: guards, form: llama_guard, timeout_ms: 30000}}
"""
HARM = """
tenant: "*"
models: [{name: sim, pool: chat}]
guards:
  rules: [{id: harm, kind: detector, detector: harm, mode: block, on_error: closed}]
"""


async def test_a_detector_of_the_settings_is_asked_and_its_questions_are_counted(tmp_path: Path) -> None:
    (tmp_path / "guarded").mkdir()
    (tmp_path / "guarded" / "default.yaml").write_text(HARM)
    async with SimEngine(SIM) as engine, SimEngine(SimSettings(models=("sim-guard",), guard={"bomb": "S9"})) as shield:
        async with serving(tmp_path, engine.url, settings=DETECTING, backend=shield.url) as served:
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S, headers=served.headers) as client:
                for text, action in (("how is a bomb made?", "block"), ("the sea", "pass"), ("the sea", "pass")):
                    answer = await client.post(f"{served.url}/v1/guard", json={"input": text})
                    assert (answer.status_code, answer.json()["action"]) == (200, action)
                pages = (await client.get(f"{served.admin}/metrics")).text
    counted = {result: f'tidegate_guard_detector_questions_total{{detector="harm",result="{result}"}} ' for result in DETECTOR_RESULTS}
    found = {result: float(pages.partition(line)[2].partition("\n")[0]) for result, line in counted.items()}
    assert found == dict.fromkeys(DETECTOR_RESULTS, 0.0) | {"answered": 2.0, "remembered": 1.0}
    assert "tidegate_guard_verdicts_total{" not in pages, "what is only tried is no verdict on a request"
