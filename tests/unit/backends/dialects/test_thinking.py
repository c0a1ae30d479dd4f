"""The switch for thinking reaches every engine in the field that it reads."""

import json
from typing import Any

import pytest

from backends.dialects.thinking import template_variables
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from tests.unit.backends.dialects.test_structure import fitted, refused

OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True}
SPELLINGS: list[dict[str, Any]] = [{"enable_thinking": False}, {"thinking": False}, {"thinking": {"type": "disabled"}}]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("fields", SPELLINGS)
def test_the_engines_variables_are_set_whichever_name_was_sent(dialect: str, fields: dict[str, Any]) -> None:
    assert fitted(dialect, Endpoint.CHAT, fields) == {"chat_template_kwargs": OFF}
    on = json.loads(json.dumps(fields).replace("false", "true").replace("disabled", "enabled"))
    assert fitted(dialect, Endpoint.CHAT, on) == {"chat_template_kwargs": ON}


def test_the_callers_own_variables_stay() -> None:
    fields = {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True, "custom": "x"}}
    expected = {"chat_template_kwargs": {"enable_thinking": True, "thinking": False, "custom": "x"}}
    assert fitted("vllm", Endpoint.CHAT, fields) == expected
    only = {"chat_template_kwargs": {"enable_thinking": False}}
    for dialect in ("vllm", "sglang", "llamacpp", "trtllm", "dynamo", "openai"):
        assert fitted(dialect, Endpoint.CHAT, only) == only


def test_an_effort_is_a_switch_where_the_engine_does_not_derive_it() -> None:
    for effort, variables in (("none", OFF), ("low", ON)):
        fields = {"reasoning_effort": effort}
        for dialect in ("llamacpp", "dynamo"):
            assert fitted(dialect, Endpoint.CHAT, fields) == fields | {"chat_template_kwargs": variables}
        for dialect in ("vllm", "sglang", "openai"):
            assert fitted(dialect, Endpoint.CHAT, fields) == fields


def test_no_effort_is_the_variable_where_the_engine_ignores_or_refuses_the_word() -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert fitted("trtllm", Endpoint.CHAT, {"reasoning_effort": "none"}) == off
    assert fitted("trtllm", Endpoint.CHAT, {"reasoning_effort": "low"}) == {"reasoning_effort": "low"}
    own = {"chat_template_kwargs": {"thinking": False}}
    assert fitted("trtllm", Endpoint.CHAT, {"reasoning_effort": "none", **own}) == own, "a second variable would be refused"


def test_engines_with_a_field_of_their_own_keep_its_object() -> None:
    own = {"thinking": {"type": "enabled", "effort": "high"}}
    for dialect in ("trtllm", "dynamo"):
        assert fitted(dialect, Endpoint.CHAT, own) == own
    # TensorRT-LLM refuses a variable that the template does not use, so only the caller's own name is set
    assert fitted("trtllm", Endpoint.CHAT, {"enable_thinking": False}) == {"chat_template_kwargs": {"enable_thinking": False}}
    assert refused("vllm", Endpoint.CHAT, own).param == "thinking.effort"


def test_engines_without_templates_of_the_callers_refuse() -> None:
    for dialect in ("tgi", "triton"):
        assert refused(dialect, Endpoint.CHAT, {"enable_thinking": False}).param == "enable_thinking"


def test_a_null_is_no_switch() -> None:
    assert fitted("vllm", Endpoint.CHAT, {"enable_thinking": None, "seed": 1}) == {"seed": 1}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": True, "thinking": False}, "thinking"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "enable_thinking"),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "low"}, "thinking"),
    ],
)
def test_a_contradiction_is_refused_with_both_names(fields: dict[str, Any], param: str) -> None:
    fault = refused("vllm", Endpoint.CHAT, fields)
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, param)
    assert all(f"'{name}'" in fault.message for name in fields)
    with pytest.raises(Fault):
        template_variables(fields)


def test_the_template_of_the_router_sees_what_the_engines_sees() -> None:
    assert template_variables({"messages": []}) == {}
    assert template_variables({"enable_thinking": False}) == OFF
    assert template_variables({"reasoning_effort": "low"}) == {"reasoning_effort": "low", "enable_thinking": True}
    assert template_variables({"thinking": True, "chat_template_kwargs": {"thinking": False, "x": 1}}) == {**ON, "thinking": False, "x": 1}
