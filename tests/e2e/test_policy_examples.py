"""The shipped examples for real situations do for requests what their comments say."""

import json
from pathlib import Path
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from gateway.http.openai import interpret
from gateway.request.policy_match import Asked, PolicyMatch, match_policy
from policies.compile import PolicySet
from policies.load import load_policies
from tenancy.rights import EVERYTHING

EXAMPLES = Path(__file__).parents[2] / "policies" / "examples"
DAY, NIGHT = 1_800_010_800.0, 1_800_050_400.0
"""2027-01-15, 12:00 and 23:00 in Zurich."""


class Site:
    """One example in force."""

    def __init__(self, name: str, folder: Path) -> None:
        (folder / f"{name}.yaml").write_text((EXAMPLES / f"{name}.yaml").read_text())
        self.tenant = name
        self.policies: PolicySet = load_policies(folder, ["chat", "chat-small", "embeddings"], {"chat": ["support-bot"]})

    def asks(self, model: str, words: int = 10, project: str = "default", at: float = DAY, key: str = "k", **more: Any) -> PolicyMatch:
        headers = more.pop("headers", {})
        body = {"model": model, "messages": [{"role": "user", "content": "word " * words}], **more}
        ask = interpret(Endpoint.CHAT, json.dumps(body).encode())
        caller = Caller(TenantId(self.tenant), ProjectId(project), KeyId("k"))
        found = match_policy(self.policies, Asked(ask, caller, "", headers, at), EVERYTHING, key)
        assert found is not None, f"no model {model}"
        return found


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(request.param, tmp_path)


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", [name], indirect=True)


@example("start-up")
def test_people_come_first_and_evaluations_are_never_given_another_model(site: Site) -> None:
    person, run = site.asks("assistant"), site.asks("assistant", project="evals")
    assert (person.policy.priority_class, run.policy.priority_class) == (Class.INTERACTIVE, Class.BATCH)
    assert (len(person.policy.degrade), run.policy.degrade, run.policy.ttft_slo_s) == (2, (), None)
    assert site.asks("gpt-4o-mini").model.name == "assistant-small"


@example("regulated")
def test_what_was_approved_answers_and_nobody_turns_its_knobs(site: Site) -> None:
    day, night = site.asks("approved-2026-10"), site.asks("approved-2026-10", at=NIGHT)
    assert (day.policy.priority_class, night.policy.priority_class) == (Class.CRITICAL, Class.DEFAULT)
    assert day.policy.parameters is not None
    assert dict(day.policy.parameters.defaults)["seed"] == b"20261001"
    assert "seed" in day.policy.parameters.refused
    assert not day.policy.statistical


@example("batch-house")
def test_short_documents_go_to_the_small_model_and_people_are_not_kept_waiting(site: Site) -> None:
    assert site.asks("extract", words=20).model.name == "extract-small"
    long = site.asks("extract", words=20_000)
    assert (long.model.name, long.policy.priority_class, long.policy.max_wait_s) == ("extract", Class.BATCH, 7200)
    person = site.asks("extract", words=20_000, headers={b"x-interactive": b"1"})
    assert (person.rule, person.policy.priority_class) == ("somebody-waits", Class.INTERACTIVE)


@example("coding-agents")
def test_completions_never_wait_long_and_background_agents_do(site: Site) -> None:
    assert site.asks("complete").policy.max_wait_s == 0.5
    background = site.asks("coder", metadata={"agent": "background"})
    assert (background.policy.priority_class, background.policy.max_wait_s) == (Class.DEFAULT, 600)
    assert site.asks("coder", words=100_000).rule == "first-turn-of-a-giant"
    assert site.asks("coder").rule == ""


@example("free-tier")
def test_who_has_no_contract_gets_the_small_model_and_a_tenth_a_taste(site: Site) -> None:
    pools = [site.asks("chat", key=f"conversation-{n}").model.pool for n in range(600)]
    assert 30 <= pools.count("chat") <= 95  # 60, give or take four standard deviations
    assert site.asks("chat", words=20_000).model.pool == "chat-small"
    assert site.asks("chat").policy.priority_class is Class.BATCH


@example("lora-saas")
def test_customers_are_projects_and_adapters_are_models(site: Site) -> None:
    assert site.asks("support").model.lora == "support-bot"
    assert site.asks("base", project="enterprise").policy.priority_class is Class.CRITICAL
    assert site.asks("base", project="trial").policy.max_output_tokens == 256
    pools = {site.asks("assistant", key=f"c{n}").model.pool for n in range(100)}
    assert pools == {"chat", "chat-small"}


def test_examples_say_what_they_are_for() -> None:
    for name in ("start-up", "regulated", "batch-house", "coding-agents", "free-tier", "lora-saas"):
        assert (EXAMPLES / f"{name}.yaml").read_text().startswith("# ")
        assert f"`{name}.yaml`" in (EXAMPLES.parents[1] / "docs" / "reference" / "policies.md").read_text()


@example("guards")
def test_guard_rules_of_all_levels_apply_and_none_is_lost(site: Site) -> None:
    def applying(found: PolicyMatch, project: str = "default", *asked: str) -> list[str]:
        assert found.policy.guards is not None
        made = found.policy.guards.of(project, found.model.name, found.rule).applied(frozenset(asked))
        assert made is not None
        assert made.held_bytes == 524_288
        return [rule.id for rule in made.rules]

    tools = [{"type": "function", "function": {"name": "f"}}]
    assert applying(site.asks("chat")) == ["keys", "people"]
    assert applying(site.asks("chat"), "default", "strict-links") == ["keys", "people", "strict-links"]
    assert applying(site.asks("chat", project="research"), "research") == ["keys", "people", "study-names"]
    everything = applying(site.asks("chat-small", project="research", tools=tools), "research", "strict-links")
    assert everything == ["keys", "people", "strict-links", "study-names", "small-injection", "agent-injection"]
