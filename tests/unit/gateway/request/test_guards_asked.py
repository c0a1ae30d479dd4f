"""The guard rules of a request, through the steps that set them; what keys and requests ask for can only add."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.http.openai import interpret
from gateway.request.fallback import fall_back
from gateway.request.fallback_chain import FallbackChain
from gateway.request.guards_asked import applying_guards, with_guarded_steps
from gateway.request.interpret import apply_policy
from gateway.request.policy_match import Asked, match_policy
from gateway.story import Story
from policies.compile import PolicySet, TenantPolicy, compiled
from policies.ladder import Smaller
from policies.schema import PolicyDocument
from tenancy.rights import EVERYTHING
from tests.placed import Worker

GRANT: Any = SimpleNamespace(rights=EVERYTHING)


def rule(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "kind": "words", "mode": "block", "words": [f"secret {name}"], **more}


def guards(*rules: Any) -> dict[str, Any]:
    return {"rules": [rule(one) if isinstance(one, str) else one for one in rules]}


MODELS: list[dict[str, Any]] = [
    {"name": "big", "pool": "chat", "fallback": [{"to": "small"}, {"to": "plain"}]},
    {"name": "small", "pool": "chat"},
    {"name": "plain", "pool": "chat"},
]
POLICY: dict[str, Any] = {
    "tenant": "acme",
    "models": MODELS,
    "guards": guards("always", rule("extra", default_on=False)),
    "for_project": {"lab": {"guards": guards("lab")}},
    "for_model": {"big": {"guards": guards("of-big", rule("big-extra", default_on=False))}, "small": {"guards": guards("of-small")}},
    "rules": [{"name": "night", "if": 'metadata["at"] == "night"', "then": {"guards": guards("night")}}],
}


def policy_set(**more: Any) -> PolicySet:
    return compiled([PolicyDocument.model_validate({**POLICY, **more})])


def caller(project: str = "web", **tags: str) -> Caller:
    return Caller(TenantId("acme"), ProjectId(project), KeyId("k"), tags=tuple((name.replace("_", "."), tags[name]) for name in tags))


def exchange(**headers: str) -> Any:
    made = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return SimpleNamespace(head=SimpleNamespace(headers=made), gone=False, finished=False)


def ask(**body: Any) -> Ask:
    fields = {"model": "big", "messages": [{"role": "user", "content": "hi"}], **body}
    return interpret(Endpoint.CHAT, json.dumps(fields).encode())


def story_of(one: Ask, who: Caller, headers: Any, worker: Worker, policies: PolicySet) -> Story:
    """The Story of a request after `apply_policy`."""
    story = Story("r", 0.0, 0.0, worker.now, "own-1")
    story.asked.caller = who
    asked = Asked(one, who, "", headers.head.headers, 0.0)
    match = match_policy(policies, asked, EVERYTHING, "k")
    assert match is not None
    apply_policy(match, one, GRANT, headers, story, worker.deps)
    story.asked.chain = FallbackChain(policies, asked, match, EVERYTHING, "k")
    return story


def applied(one: Ask, who: Caller | None = None, policies: PolicySet | None = None, **headers: str) -> list[str]:
    made = story_of(one, who or caller(), exchange(**headers), Worker("a"), policies or policy_set())
    return names(made)


def names(story: Story) -> list[str]:
    return [] if story.asked.guards is None else [one.id for one in story.asked.guards.rules]


def refused(one: Ask, who: Caller | None = None, policies: PolicySet | None = None, **headers: str) -> Fault:
    with pytest.raises(Fault) as caught:
        applied(one, who, policies, **headers)
    return caught.value


async def test_the_story_says_which_rules_apply_by_project_model_and_rule() -> None:
    assert applied(ask()) == ["always", "of-big"]
    assert applied(ask(), caller("lab")) == ["always", "lab", "of-big"]
    assert applied(ask(model="plain")) == ["always"]
    assert applied(ask(model="small", metadata={"at": "night"}), caller("lab")) == ["always", "lab", "of-small", "night"]
    assert applied(ask(), policies=policy_set(guards=None, for_project={}, for_model={}, rules=[])) == []


async def test_a_request_asks_for_rules_in_its_header_and_its_body() -> None:
    assert applied(ask(), x_tidegate_guards="extra") == ["always", "extra", "of-big"]
    assert applied(ask(), x_tidegate_guards=" big-extra ,, extra,") == ["always", "extra", "of-big", "big-extra"]
    assert applied(ask(guardrails=["extra"]), x_tidegate_guards="big-extra") == ["always", "extra", "of-big", "big-extra"]
    assert applied(ask(metadata={"guardrails": ["big-extra"]})) == ["always", "of-big", "big-extra"]
    assert applied(ask(guardrails=["always"]), x_tidegate_guards="") == ["always", "of-big"], "what applies anyway may be named"


async def test_a_key_asks_for_rules_by_its_tags() -> None:
    assert applied(ask(), caller(guard_extra="on")) == ["always", "extra", "of-big"]
    assert applied(ask(), caller(guard_extra="off", guard_always="off")) == ["always", "of-big"], "a tag takes nothing away"
    assert applied(ask(), caller(own_guard_extra="on", guard_gone="on", extra="on")) == ["always", "of-big"]


@pytest.mark.parametrize(
    ("one", "headers", "param"), [({"guardrails": ["nope"]}, {}, "guardrails"), ({}, {"x_tidegate_guards": "nope"}, "x")]
)
async def test_a_rule_that_does_not_exist_is_refused_by_its_name_and_no_other_rule_is_told(
    one: dict[str, Any], headers: dict[str, str], param: str
) -> None:
    fault = refused(ask(**one), **headers)
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "guardrails" if param == "guardrails" else "x-tidegate-guards")
    assert fault.message == "There is no guard rule 'nope' for this request. Leave it out, or ask your operator for it."


async def test_a_rule_of_another_model_does_not_exist_for_the_request() -> None:
    assert refused(ask(model="plain", guardrails=["big-extra"])).kind is Kind.INVALID_VALUE
    bare = policy_set(guards=None, for_project={}, for_model={}, rules=[])
    assert refused(ask(guardrails=["always"]), policies=bare).kind is Kind.INVALID_VALUE
    assert refused(ask(), policies=bare, x_tidegate_guards="\x1b[2J" + "x" * 500).message.startswith("There is no guard rule '\\x1b[2Jxxx")


def away() -> Fault:
    return Fault(Kind.NO_BACKEND, "Nobody.")


async def test_after_a_fallback_the_rules_are_those_of_the_model_that_answers() -> None:
    worker = Worker("a")
    headers = exchange(x_tidegate_guards="extra")
    story = story_of(ask(metadata={"at": "night"}), caller("lab"), headers, worker, policy_set())
    assert names(story) == ["always", "extra", "lab", "of-big", "night"]
    _, rule_of_model, following = fall_back(away(), GRANT, headers, story, worker.deps)
    assert (rule_of_model.name, names(following)) == ("small", ["always", "extra", "lab", "of-small", "night"])
    _, rule_of_model, last = fall_back(away(), GRANT, headers, following, worker.deps)
    assert (rule_of_model.name, names(last)) == ("plain", ["always", "extra", "lab", "night"])
    assert names(story) == ["always", "extra", "lab", "of-big", "night"]


async def test_no_model_answers_instead_that_lacks_a_rule_which_the_request_asks_for() -> None:
    worker = Worker("a")
    models = {"big": {"guards": guards(rule("big-extra", default_on=False))}, "plain": {"guards": guards(rule("big-extra"))}}
    headers = exchange()
    story = story_of(ask(guardrails=["big-extra"]), caller(), headers, worker, policy_set(for_model=models))
    _, rule_of_model, following = fall_back(away(), GRANT, headers, story, worker.deps)
    assert (rule_of_model.name, names(following)) == ("plain", ["always", "big-extra"])


def policy_of(policies: PolicySet) -> TenantPolicy:
    policy = policies.for_tenant("acme")
    assert policy is not None
    return policy


def test_a_ladder_keeps_the_steps_whose_models_have_the_rules_that_are_asked_for() -> None:
    policy = policy_of(policy_set(degrade=[{"trim_output_tokens": 5}, {"model": "small"}, {"model": "plain"}]))
    assert with_guarded_steps(policy, "", ask(), caller(), {}) is policy
    assert with_guarded_steps(policy, "", ask(guardrails=["extra"]), caller(), {}) is policy
    guarded = with_guarded_steps(policy, "", ask(guardrails=["of-small"]), caller(), {})
    assert [step.model for step in guarded.degrade if isinstance(step, Smaller)] == ["small"]
    none_left = with_guarded_steps(policy, "", ask(), caller(), {b"x-tidegate-guards": b"big-extra"})
    assert len(none_left.degrade) == 1


def test_a_policy_without_guards_has_none_to_apply() -> None:
    bare = policy_of(policy_set(guards=None, for_project={}, for_model={}, rules=[]))
    assert applying_guards(bare, "big", "", ask(), caller(guard_extra="on"), {}) is None
