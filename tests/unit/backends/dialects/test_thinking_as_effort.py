"""Models whose chat template knows efforts and no switch: whatever the caller wrote reaches them as `reasoning_effort`."""

import json
from typing import Any

import pytest

from backends.dialects import DIALECTS, fit, with_efforts
from backends.dialects.thinking import Efforts, template_variables
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret

GPT_OSS = Efforts(enabled="medium", disabled="low")
OFF: list[dict[str, Any]] = [
    {"enable_thinking": False},
    {"thinking": False},
    {"thinking": {"type": "disabled"}},
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
    {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
]
ON: list[dict[str, Any]] = [
    {"enable_thinking": True},
    {"thinking": {"type": "enabled"}},
    {"chat_template_kwargs": {"thinking": True}},
    {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
]
TAKING = ["vllm", "sglang", "llamacpp", "dynamo", "trtllm", "openai"]


def fitted(dialect: str, fields: dict[str, Any], efforts: Efforts = GPT_OSS) -> dict[str, Any]:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    ask, rules = interpret(Endpoint.CHAT, json.dumps(asked).encode()), with_efforts(DIALECTS[dialect], efforts).fields
    sent: dict[str, Any] = json.loads(ask.fields if rules.leaves(ask.names) else fit(rules, ask))
    return {name: value for name, value in sent.items() if name != "messages"}


@pytest.mark.parametrize("dialect", TAKING)
@pytest.mark.parametrize(("spelled", "effort"), [*((fields, "low") for fields in OFF), *((fields, "medium") for fields in ON)])
def test_every_spelling_of_the_switch_is_an_effort_and_no_variable(dialect: str, spelled: dict[str, Any], effort: str) -> None:
    assert fitted(dialect, spelled) == {"reasoning_effort": effort}
    assert template_variables(spelled, GPT_OSS) == {"reasoning_effort": effort}, "the router renders what the engine gets"


@pytest.mark.parametrize("dialect", TAKING)
def test_an_effort_of_the_callers_own_stays(dialect: str) -> None:
    for fields in ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True}):
        assert fitted(dialect, fields) == {"reasoning_effort": "high"}
    variable = {"chat_template_kwargs": {"reasoning_effort": "high"}}
    assert fitted(dialect, variable) == fitted(dialect, variable | {"enable_thinking": True}) == variable


@pytest.mark.parametrize("dialect", TAKING)
def test_nothing_is_asked_where_the_caller_asked_nothing(dialect: str) -> None:
    for fields in ({"seed": 1}, {"seed": 1, "chat_template_kwargs": {"style": "brief"}}):
        assert fitted(dialect, fields) == fields
        assert template_variables(fields, GPT_OSS) == fields.get("chat_template_kwargs", {})


def test_the_templates_other_variables_stay() -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": False, "style": "brief"}}
    assert fitted("vllm", fields) == {"reasoning_effort": "low", "chat_template_kwargs": {"style": "brief"}}


def test_the_words_are_the_settings_own() -> None:
    assert fitted("vllm", {"enable_thinking": False}, Efforts(enabled="high", disabled="none")) == {"reasoning_effort": "none"}


def test_a_contradiction_is_refused_as_for_other_models() -> None:
    with pytest.raises(Fault) as caught:
        fitted("vllm", {"enable_thinking": True, "reasoning_effort": "none"})
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, "enable_thinking")
