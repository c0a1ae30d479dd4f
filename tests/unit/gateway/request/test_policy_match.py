from typing import Any

import msgspec

from domain.ask import Endpoint
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.http.openai import interpret
from gateway.request.policy_match import Asked, PolicyMatch, match_policy
from policies.compile import compiled
from policies.conditions import VARIABLES, ConditionNeeds
from policies.schema import PolicyDocument
from tenancy.rights import EVERYTHING, Allowed, Rights, combined

MODELS = [{"name": "chat", "pool": "chat"}, {"name": "small", "pool": "small"}, {"name": "alias", "alias_of": "chat"}]
CALLER = Caller(TenantId("acme"), ProjectId("lab"), KeyId("gw_live_1"), tags=(("tier", "gold"),))


def asked(headers: dict[bytes, bytes] | None = None, now_unix: float = 0.0, **body: Any) -> Asked:
    written = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **body}
    ask = interpret(Endpoint.CHAT, msgspec.json.encode(written))
    return Asked(ask, CALLER, ask.user, headers or {}, now_unix)


def ruled(rules: list[dict[str, Any]], request: Asked, allowed: Allowed = EVERYTHING, **more: Any) -> PolicyMatch:
    document = PolicyDocument.model_validate({"tenant": "acme", "models": MODELS, "rules": rules, **more})
    found = match_policy(compiled([document]), request, allowed, "key")
    assert found is not None
    return found


def rule(name: str, condition: str, **then: Any) -> dict[str, Any]:
    return {"name": name, "if": condition, "then": then or {"priority": 1.0}}


def test_conditions_can_ask_about_everything_that_is_documented() -> None:
    request = asked(
        {b"x-team": b"red", b"authorization": b"Bearer secret", b"cookie": b"c"},
        now_unix=1_800_000_000.0,  # 2027-01-15 08:00 UTC, a Friday
        user="ann",
        metadata={"job": "nightly", "deep": ["x"]},
        max_tokens=7,
        n=2,
        stream=True,
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    facts = ConditionNeeds(frozenset(VARIABLES), None).taken(request.values("chat"))
    assert facts.keys() == VARIABLES.keys()
    assert facts["key_tags"] == {"tier": "gold"}
    assert facts["headers"] == {"x-team": "red"}
    assert facts["metadata"] == {"job": "nightly"}
    said = (
        'project == "lab" && key == "gw_live_1" && user == "ann" && session == "" && stream && choices == 2 && tools && media == 0 '
        '&& endpoint == "chat" && max_output_tokens == 7 && prompt_tokens > 0 && headers["x-team"] == "red" && metadata.job == "nightly" '
        '&& key_tags["tier"] == "gold" && now.getDayOfWeek() == 5 && now.getHours("Europe/Berlin") == 9 && model == "chat"'
    )
    assert ruled([rule("all", said)], request).rule == "all"


def test_headers_are_looked_up_by_name_where_that_is_all_that_is_asked() -> None:
    request = asked({b"x-team": b"red", b"authorization": b"Bearer secret"})
    needs = ConditionNeeds(frozenset({"headers"}), frozenset({"x-team", "authorization", "none"}))
    assert needs.taken(request.values("chat")) == {"headers": {"x-team": "red"}}
    assert ruled([rule("a", '"authorization" in headers'), rule("b", 'headers["x-team"] == "red"')], request).rule == "b"


def test_a_request_without_metadata_has_none() -> None:
    assert ruled([rule("a", "size(metadata) > 0"), rule("b", 'user == ""')], asked()).rule == "b"


def test_the_first_rule_counts_after_what_is_for_its_project_and_the_model_that_answers() -> None:
    more = {"for_project": {"lab": {"max_wait_s": 1, "priority": 0.25}}, "for_model": {"small": {"max_wait_s": 2}}}
    rules = [rule("no", "stream"), rule("yes", "!stream", model="small", priority=0.5), rule("late", "true", priority=0.75)]
    found = ruled(rules, asked(), **more)
    assert (found.rule, found.model.name, found.policy.priority, found.policy.max_wait_s) == ("yes", "small", 0.5, 2)


def test_who_may_not_use_a_rules_model_comes_under_the_next() -> None:
    allowed = combined([("tenant acme", Rights(models=frozenset({"chat"})))])
    found = ruled([rule("a", "true", model="small"), rule("b", "true", priority=0.5)], asked(), allowed)
    assert (found.rule, found.model.name) == ("b", "chat")


def test_a_rule_for_a_model_is_for_its_aliases() -> None:
    rules = [{"name": "a", "models": ["chat"], "if": 'model == "chat"', "then": {"priority": 1.0}}]
    assert ruled(rules, asked(model="alias")).rule == "a"
    assert ruled(rules, asked(model="small")).rule == ""


def test_models_that_do_not_exist_and_those_that_are_not_allowed_are_the_same() -> None:
    policies = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": MODELS})])
    nothing = combined([("tenant acme", Rights(models=frozenset()))])
    assert match_policy(policies, asked(model="nope"), EVERYTHING, "k") is None
    assert match_policy(policies, asked(), nothing, "k") is None
    assert match_policy(compiled([]), asked(), EVERYTHING, "k") is None
