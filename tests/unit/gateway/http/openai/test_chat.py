"""Chat: its own fields, and how many answers a whole one has."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault
from gateway.http.openai import interpret

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
    ],
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        ask(**fields)
    assert caught.value.param == param


def test_n_answers() -> None:
    assert ask(n=5).choices == 5
    assert ask().choices == 1
