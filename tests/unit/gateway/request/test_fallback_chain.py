import json
from typing import Any

from domain.ask import Endpoint
from domain.faults import Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.http.openai import interpret
from gateway.request.fallback_chain import FallbackChain
from gateway.request.policy_match import Asked, match_policy
from policies.compile import compiled
from policies.schema import PolicyDocument
from tenancy.limits import Level, Scope
from tenancy.rights import EVERYTHING, Allowed, Rights, combined

CAPACITY, LENGTH, ERROR = ["no_capacity"], ["context_too_long"], ["error"]
KINDS = {"no_capacity": Kind.OVERLOADED, "context_too_long": Kind.CONTEXT_TOO_LONG, "error": Kind.BROKEN_STREAM, "limit": Kind.TOKEN_LIMIT}


def chain(fallback: list[tuple[str, list[str]]], allowed: Allowed = EVERYTHING, **more: Any) -> FallbackChain:
    models = [{"name": name, "pool": name} for name in ("big", "small", "long", "other")]
    models[0]["fallback"] = [{"to": to, "on": on} for to, on in fallback]  # type: ignore[assignment]  # a model's entry
    policies = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": models, **more})])
    body = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
    ask = interpret(Endpoint.CHAT, json.dumps(body).encode())
    asked = Asked(ask, Caller(TenantId("acme"), ProjectId("lab"), KeyId("k")), "", {}, 0.0)
    found = match_policy(policies, asked, allowed, "key")
    assert found is not None
    return FallbackChain(policies, asked, found, allowed, "key")


def walked(made: FallbackChain, *failures: str) -> list[tuple[str, str]]:
    """The models tried, each of which fails in the next way, and why."""
    model, seen = "big", []
    for failure in failures:
        found = made.after(KINDS[failure], model)
        if found is None:
            break
        model = found[0].model.name
        seen.append((model, found[1]))
    return seen


def test_models_are_tried_in_their_order_each_once_and_for_what_they_are_named_for() -> None:
    steps = [("small", CAPACITY), ("long", LENGTH), ("other", CAPACITY)]
    assert walked(chain(steps), "no_capacity", "no_capacity", "no_capacity") == [("small", "no_capacity"), ("other", "no_capacity")]
    assert walked(chain(steps), "context_too_long", "context_too_long") == [("long", "context_too_long")]
    assert walked(chain(steps), "error") == []


def test_how_any_model_before_failed_counts_for_those_that_follow() -> None:
    steps = [("long", LENGTH), ("small", CAPACITY), ("other", ERROR)]
    assert walked(chain(steps), "no_capacity", "context_too_long", "error") == [
        ("small", "no_capacity"),
        ("long", "context_too_long"),
        ("other", "error"),
    ]
    two = [("small", CAPACITY), ("other", CAPACITY)]
    assert walked(chain(two), "no_capacity", "limit") == [("small", "no_capacity"), ("other", "no_capacity")], "its own limit stops nobody"
    assert walked(chain(two), "limit") == [], "the limits of the model that was asked for are not gone around"


def test_what_the_caller_may_not_use_and_what_has_failed_already_is_passed_over() -> None:
    steps = [("small", CAPACITY), ("other", CAPACITY)]
    allowed = combined(((Scope(Level.KEY, "k"), Rights(models=frozenset({"big", "other"}))),))
    assert walked(chain(steps, allowed), "no_capacity") == [("other", "no_capacity")]
    found = chain(steps).after(Kind.NO_BACKEND, "small")
    assert found is not None
    assert found[0].model.name == "other", "a ladder had led to the first one"


def test_it_is_treated_as_requests_for_the_model_that_answers_and_by_its_rule_still() -> None:
    more = {
        "for_model": {"small": {"max_wait_s": 3, "priority": 0.5}},
        "rules": [{"name": "r", "models": ["big"], "then": {"priority": 1}}],
    }
    found = chain([("small", CAPACITY)], **more).after(Kind.OVERLOADED, "big")
    assert found is not None
    assert (found[0].policy.max_wait_s, found[0].policy.priority, found[0].rule) == (3, 1.0, "r")


def test_whether_another_model_is_named_for_a_failure_is_known_before_it_is_tried() -> None:
    made = chain([("small", ERROR), ("long", LENGTH)])
    assert made.has_for(Kind.CONNECT_FAILED)
    assert not made.has_for(Kind.NO_BACKEND)
    assert walked(made, "error", "error") == [("small", "error")]
    assert not made.has_for(Kind.CONNECT_FAILED), "it was tried"
