"""The members of a body that name guard rules are read and taken off."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.controls import MAX_GUARDS

BODIES: dict[Endpoint, dict[str, Any]] = {endpoint: json.loads(endpoint.probe) for endpoint in Endpoint}


def ask(endpoint: Endpoint = Endpoint.CHAT, **more: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **BODIES[endpoint], **more}).encode())


@pytest.mark.parametrize("endpoint", Endpoint, ids=lambda endpoint: endpoint.word)
def test_no_engine_gets_them_and_the_rest_of_metadata_stays(endpoint: Endpoint) -> None:
    plain = ask(endpoint, metadata={"a": "b"})
    named = ask(endpoint, metadata={"guardrails": ["two"], "a": "b"}, guardrails=["one", "three"])
    assert (named.guards, plain.guards) == (("one", "three", "two"), ())
    assert (named.fields, named.names) == (plain.fields, plain.names)
    assert ask(endpoint, guardrails=[], metadata={"a": "b"}).fields == plain.fields
    assert ask(endpoint, guardrails=None).guards == ()


def test_metadata_that_names_rules_alone_is_left_out() -> None:
    assert "metadata" not in ask(metadata={"guardrails": ["one"]}).names
    assert "metadata" in ask(metadata={}).names
    assert ask(metadata="text").names == ask(metadata=None).names  # what is no object is the engine's to refuse


@pytest.mark.parametrize("value", ["one", {"one": {}}, [1], [{"one": {"extra_body": {}}}], True, ["x"] * (MAX_GUARDS + 1)])
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_no_list_of_names_is_refused_where_it_stands(value: object, inside: bool) -> None:
    with pytest.raises(Fault) as refused:
        ask(**({"metadata": {"guardrails": value}} if inside else {"guardrails": value}))
    param = "metadata.guardrails" if inside else "guardrails"
    assert (refused.value.kind, refused.value.param) == (Kind.INVALID_VALUE, param)
    assert refused.value.message.startswith(f"Invalid value for '{param}': ")
