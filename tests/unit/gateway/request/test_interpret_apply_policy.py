import json
from types import SimpleNamespace
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from gateway.http.openai import interpret
from gateway.request.interpret import apply_policy
from gateway.request.policy_match import Asked, PolicyMatch, match_policy
from gateway.story import Story
from policies.compile import compiled
from policies.schema import PolicyDocument
from tenancy.rights import EVERYTHING

GRANT: Any = SimpleNamespace(rights=EVERYTHING)
NO_ROLLOUTS: Any = SimpleNamespace(live=SimpleNamespace(rollouts=SimpleNamespace(by_pool={})))
EXCHANGE: Any = SimpleNamespace(head=SimpleNamespace(headers={b"x-tidegate-class": b"batch"}))


def found(body: dict[str, Any], **policy: Any) -> tuple[PolicyMatch, Any]:
    models = [{"name": "chat", "pool": "chat"}, {"name": "alias", "alias_of": "chat"}]
    policies = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": models, **policy})])
    ask = interpret(Endpoint.CHAT, json.dumps({"model": "alias", "messages": [{"role": "user", "content": "hi"}], **body}).encode())
    asked = Asked(ask, Caller(TenantId("acme"), ProjectId("p"), KeyId("k")), "", {}, 0.0)
    made = match_policy(policies, asked, EVERYTHING, "k")
    assert made is not None
    return made, ask


def test_the_story_says_how_the_request_is_treated() -> None:
    story = Story("r", 0.0, 0.0, 0.0)
    made, ask = found({}, max_output_tokens=9, expose_headers=True, parameters={"defaults": {"temperature": 0.5}})
    given, rule = apply_policy(made, ask, GRANT, EXCHANGE, story, NO_ROLLOUTS)
    assert (b'"temperature":0.5' in given.fields, rule) == (True, made.model)
    assert (story.asked.model, story.asked.asked_model, story.asked.output_cap, story.asked.expose) == ("chat", "alias", 9, True)
    assert story.asked.priority_class is Class.BATCH


def test_what_it_may_not_set_is_refused() -> None:
    made, ask = found({"temperature": 1}, parameters={"refused": ["temperature"]})
    with pytest.raises(Fault) as refused:
        apply_policy(made, ask, GRANT, EXCHANGE, Story("r", 0.0, 0.0, 0.0), NO_ROLLOUTS)
    assert refused.value.kind is Kind.NOT_PERMITTED
