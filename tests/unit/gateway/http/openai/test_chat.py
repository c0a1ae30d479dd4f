"""Chat: its own fields, and how many answers a whole one has."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.chat import CALL_VARIABLES

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
DEEP: Any = {}
for _ in range(40):
    DEEP = {"items": DEEP}


def ask(**fields: Any) -> Ask:
    return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL] * 256, "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        {"logprobs": True, "top_logprobs": 20},
        {"max_completion_tokens": 5},
        {"chat_template_kwargs": {"enable_thinking": False, "thinking_budget": 512, "style": "brief", "unset": None, "share": 0.5}},
        {"chat_template_kwargs": {f"v{i}": "x" * 1024 for i in range(16)}},
        {"chat_template_kwargs": {}},
        {"enable_thinking": True, "thinking": {"type": "enabled"}},
        {"thinking": False},
    ],
)
def test_accepted_and_passed_on(fields: dict[str, Any]) -> None:
    assert fields.items() <= json.loads(ask(**fields).fields).items()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL] * 257}, "tools"),
        ({"tools": TOOL}, "tools"),
        ({"tools": [TOOL, 5]}, "tools[1]"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f" * 257}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "y" * 65_536}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"functions": [{}] * 257}, "functions"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"v{i}": 1 for i in range(17)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"{{": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": {"b": 1}}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {"a": "x" * 1025}}, "chat_template_kwargs.a"),
        ({"mm_processor_kwargs": []}, "mm_processor_kwargs"),
        ({"media_io_kwargs": {"video": "x" * 4097}}, "media_io_kwargs"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"thinking": "no"}, "thinking"),
        ({"thinking": {"type": "auto"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
    ],
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        ask(**fields)
    assert caught.value.param == param


@pytest.mark.fault("expensive parameters")
@pytest.mark.req("R57")
@pytest.mark.parametrize("name", sorted(CALL_VARIABLES))
def test_no_variable_changes_the_call_that_renders_the_template(name: str) -> None:
    for value in ("x", True, 10**9):
        with pytest.raises(Fault) as caught:
            ask(chat_template_kwargs={"enable_thinking": False, name: value})
        assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, f"chat_template_kwargs.{name}")


def test_call_variables_are_those_of_the_engines() -> None:
    """The arguments of `apply_chat_template` in transformers 5, all of which vLLM 0.32 hands on, but for the two that it refuses itself."""
    arguments = "conversation tools documents add_generation_prompt continue_final_message padding truncation max_length return_tensors"
    assert {*arguments.split(), "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"} <= CALL_VARIABLES
    assert {"chat_template", "tokenize"} <= CALL_VARIABLES


def test_n_answers() -> None:
    assert ask(n=5).choices == 5
    assert ask().choices == 1
