"""Fields of a request: where each goes, and what is refused by name."""

import json
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.responses.request import in_callers_words
from gateway.http.responses.tools import MAX_TOOLS
from policies.caps import USUAL_CAPS
from tests.responses_wire import FUNCTION, asked_of, chat_for

SCHEMA = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"max_output_tokens": 50}, {"max_completion_tokens": 50}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None, "context": "all_turns"}}, {}),
        ({"text": {"verbosity": "low", "format": {"type": "text"}}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"}, "strict": True}}},
        ),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_logprobs": 0}, {}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": False}, {"stream": False}),
        # a Response in the background is a stream for the engine, whoever reads it
        ({"background": True, "store": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"background": True, "stream": False}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"store": True, "background": False, "truncation": "disabled", "include": ["reasoning.encrypted_content"]}, {}),
        ({"previous_response_id": None, "conversation": None, "max_tool_calls": None, "prompt": None}, {}),
        # without tools, OpenAI and vLLM refuse a chat with these
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        # what is not known here, engines may know
        (
            {"top_k": 5, "chat_template_kwargs": {"a": 1}, "guardrails": ["g"]},
            {"top_k": 5, "chat_template_kwargs": {"a": 1}, "guardrails": ["g"]},
        ),
        (
            {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "flex"},
            {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "flex"},
        ),
    ],
)
def test_each_field_has_its_place_in_the_chat(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    chat = chat_for(input="hi", **fields)
    assert list(chat)[:2] == ["model", "messages"]  # the order that is read fastest
    assert chat.pop("messages") == [{"role": "user", "content": "hi"}]
    assert chat == {"model": "m", **expected}


def test_what_codex_sends_is_a_chat_that_passes_the_checks() -> None:
    body = {
        "model": "m",
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "permissions"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
            {"type": "custom_tool_call", "status": "completed", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done!"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "exec_command",
                "description": "d",
                "strict": False,
                "parameters": {"type": "object", "properties": {}},
            },
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "d",
                "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "low"},
    }
    ask = interpret(Endpoint.CHAT, asked_of(json.dumps(body).encode()).chat)
    assert (ask.stream, ask.include_usage) == (True, True)
    chat = json.loads(asked_of(json.dumps(body).encode()).chat)
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"previous_response_id": 5}, "previous_response_id", Kind.INVALID_VALUE),
        ({"previous_response_id": ""}, "previous_response_id", Kind.INVALID_VALUE),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation", Kind.INVALID_VALUE),
        ({"conversation": "conv_1", "background": True}, "conversation", Kind.UNSUPPORTED_PARAMETER),
        ({"conversation": {"name": "conv_1"}}, "conversation.id", Kind.MISSING_PARAMETER),
        ({"conversation": ["conv_1"]}, "conversation", Kind.INVALID_VALUE),
        ({"prompt": {"id": "p"}}, "prompt", Kind.UNSUPPORTED_PARAMETER),
        ({"background": 1}, "background", Kind.INVALID_VALUE),
        ({"background": True, "stream": 1}, "stream", Kind.INVALID_VALUE),
        ({"store": "no"}, "store", Kind.INVALID_VALUE),
        ({"max_tool_calls": 3}, "max_tool_calls", Kind.UNSUPPORTED_PARAMETER),
        ({"truncation": "auto"}, "truncation", Kind.UNSUPPORTED_PARAMETER),
        ({"truncation": 5}, "truncation", Kind.INVALID_VALUE),
        ({"context_management": []}, "context_management", Kind.UNSUPPORTED_PARAMETER),
        ({"messages": []}, "messages", Kind.UNSUPPORTED_PARAMETER),
        ({"max_tokens": 5}, "max_tokens", Kind.UNSUPPORTED_PARAMETER),
        ({"n": 2}, "n", Kind.UNSUPPORTED_PARAMETER),
        ({"response_format": {}}, "response_format", Kind.UNSUPPORTED_PARAMETER),
        ({"include": "x"}, "include", Kind.INVALID_VALUE),
        ({"include": [5]}, "include[0]", Kind.INVALID_VALUE),
        ({"include": ["reasoning.encrypted_content", "all"]}, "include[1]", Kind.INVALID_VALUE),
        ({"instructions": 5}, "instructions", Kind.INVALID_VALUE),
        ({"tools": {}}, "tools", Kind.INVALID_VALUE),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", Kind.INVALID_VALUE),
        ({"stream_options": 5}, "stream_options", Kind.INVALID_VALUE),
        ({"metadata": 5}, "metadata", Kind.INVALID_VALUE),
        ({"top_logprobs": "5"}, "top_logprobs", Kind.INVALID_VALUE),
        ({"reasoning": "low"}, "reasoning", Kind.INVALID_VALUE),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", Kind.INVALID_VALUE),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", Kind.UNSUPPORTED_PARAMETER),
        ({"reasoning": {"context": "current_turn"}}, "reasoning.context", Kind.UNSUPPORTED_PARAMETER),
        ({"text": "x"}, "text", Kind.INVALID_VALUE),
        ({"text": {"size": 5}}, "text.size", Kind.UNSUPPORTED_PARAMETER),
        ({"text": {"format": "text"}}, "text.format", Kind.INVALID_VALUE),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", Kind.INVALID_VALUE),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", Kind.MISSING_PARAMETER),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": 5}}}, "text.format.schema", Kind.INVALID_VALUE),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        chat_for(input="hi", **fields)
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert f"'{param}'" in caught.value.message


def test_a_chat_is_not_much_longer_than_its_request() -> None:
    usual = [{"type": "custom", "name": f"t{number}"} for number in range(USUAL_CAPS.tools)]
    assert len(chat_for(input="hi", tools=usual)["tools"]) == USUAL_CAPS.tools
    many = [{"type": "custom", "name": f"t{number}"} for number in range(MAX_TOOLS)]
    numbers = b'{"model":"m","input":"hi","odd":[%b]}' % b",".join(
        [b"1e15"] * 50_000
    )  # a number of 4 bytes has 18 when it is written again
    for body, param in ((json.dumps({"model": "m", "input": "hi", "tools": many}).encode(), "tools"), (numbers, "odd")):
        with pytest.raises(Fault) as caught:
            asked_of(body)
        assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, param)
        assert f"'{param}'" in caught.value.message


def test_a_request_without_input_or_without_json_is_refused() -> None:
    with pytest.raises(Fault) as caught:
        chat_for()
    assert (caught.value.kind, caught.value.param) == (Kind.MISSING_PARAMETER, "input")
    with pytest.raises(Fault) as caught:
        asked_of(b'{"model":"m","model":"n","input":"x"}')
    assert caught.value.kind is Kind.INVALID_JSON


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"parallel_tool_calls": 5, "tools": [FUNCTION]}, "parallel_tool_calls"),
        ({"tools": [{**FUNCTION, "parameters": 5}]}, "tools"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 900}, "top_logprobs"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "user", "content": []}], "instructions": "i"}, "input[1]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "ftp://x"}]}]}, "input[0]"),
    ],
)
def test_what_the_check_of_the_chat_refuses_is_told_in_the_callers_words(fields: dict[str, Any], param: str) -> None:
    ask = asked_of(json.dumps({"model": "m", "input": "hi", **fields}).encode())
    with pytest.raises(Fault) as caught:
        interpret(Endpoint.CHAT, ask.chat)
    told = in_callers_words(caught.value, ask.places)
    assert told.param == param
    assert f"'{param}'" in told.message
    assert told.kind is caught.value.kind


@pytest.mark.parametrize(
    ("param", "expected"),
    [("messages[0].content", "instructions"), ("messages[2]", "input[3]"), ("messages[9]", "input"), ("messages", "input")],
)
def test_a_message_is_named_by_the_item_that_it_began_with(param: str, expected: str) -> None:
    fault = Fault(Kind.INVALID_VALUE, f"Invalid value for '{param}'.", param=param)
    told = in_callers_words(fault, (-1, 0, 3))
    assert (told.param, told.message) == (expected, f"Invalid value for '{expected}'.")
    assert in_callers_words(fault, ()).param == "input"


def test_a_cap_of_the_callers_rights_has_its_name_here() -> None:
    assert in_callers_words(Fault(Kind.INVALID_VALUE, "why", param="max_tokens"), (0,)).param == "max_output_tokens"


@pytest.mark.parametrize("param", [None, "model", "input[3].type"])
def test_other_faults_are_told_as_they_are(param: str | None) -> None:
    fault = Fault(Kind.INVALID_VALUE, "why", param=param)
    assert in_callers_words(fault, ()) is fault
