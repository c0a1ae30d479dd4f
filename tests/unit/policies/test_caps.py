"""Caps of policies: today's numbers without an entry, never above what an engine or the reader takes, and the widest of all levels."""

from typing import Any

import pytest
from pydantic import ValidationError

from policies.caps import USUAL_CAPS, RequestCaps, set_caps, widest
from policies.compile import PolicySet, compiled
from policies.schema import PolicyDocument
from policies.shown import differences, treatment


def policies(**fields: Any) -> PolicySet:
    document = {"tenant": "acme", "models": [{"name": "a", "pool": "p"}, {"name": "b", "pool": "p"}], **fields}
    return compiled([PolicyDocument.model_validate(document)])


def test_a_policy_without_caps_has_the_usual_ones_and_they_are_one_object() -> None:
    policy = policies().by_tenant["acme"]
    assert policy.caps is policy.widest_caps is USUAL_CAPS
    assert policy.body_caps == ()
    assert policies(caps={"tools": 256}).by_tenant["acme"].caps is USUAL_CAPS


def test_todays_numbers() -> None:
    caps = USUAL_CAPS
    assert (caps.choices, caps.logprobs, caps.stops, caps.stop_chars, caps.biases, caps.tools) == (16, 20, 16, 1024, 1024, 256)
    assert (caps.inputs, caps.prompts, caps.messages, caps.parts, caps.tool_calls) == (2048, 256, 4096, 1024, 128)
    assert (caps.schema_bytes, caps.schema_depth, caps.grammar_chars) == (65_536, 32, 8192)


@pytest.mark.parametrize("name", RequestCaps.model_fields)
def test_every_cap_has_an_upper_bound_and_says_what_it_bounds(name: str) -> None:
    field = RequestCaps.model_fields[name]
    most = next(bound.le for bound in field.metadata if hasattr(bound, "le"))
    assert RequestCaps.model_validate({name: most})
    with pytest.raises(ValidationError, match="less than or equal"):
        RequestCaps.model_validate({name: most + 1})
    assert field.description


def test_requests_are_read_under_the_widest_caps_of_all_levels() -> None:
    written = {
        "caps": {"tools": 300},
        "for_model": {"b": {"caps": {"choices": 64, "body_bytes": 20_000_000}}},
        "rules": [{"name": "r", "if": "stream", "then": {"caps": {"stops": 99}}}],
    }
    policy = policies(**written).by_tenant["acme"]
    assert set_caps(policy.widest_caps) == {"tools": 300, "choices": 64, "stops": 99}
    assert set(policy.body_caps) == {None, 20_000_000}
    assert set_caps(policy.treating("default", "b").caps) == {"choices": 64, "body_bytes": 20_000_000}, "inherited as a whole"


def test_a_level_that_narrows_costs_the_others_nothing() -> None:
    policy = policies(for_model={"b": {"caps": {"tools": 2}}}).by_tenant["acme"]
    assert policy.caps is policy.widest_caps, "no second check for model a"
    assert policy.treating("default", "b").caps.tools == 2
    assert widest([RequestCaps(tools=2), RequestCaps(tools=3, body_bytes=5000)]).tools == 3


def test_caps_are_shown_and_compared_as_text() -> None:
    before, after = policies(), policies(caps={"tools": 300})
    assert treatment(before.by_tenant["acme"])["caps"] == "the usual"
    assert treatment(after.by_tenant["acme"])["caps"] == "tools 300"
    assert list(differences(before, after)) == ["acme: caps the usual -> tools 300"]
