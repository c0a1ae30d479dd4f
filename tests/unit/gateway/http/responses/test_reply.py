"""A whole reply as a Response, and what it repeats of the request."""

import json
from typing import Any

import pytest

from domain.faults import Fault, Kind
from tests.responses_wire import CUSTOM, FUNCTION, MODEL, NOW, USAGE, plain_chat, response, translation


def told(message: dict[str, Any], finish_reason: str = "stop", **fields: object) -> dict[str, Any]:
    return response(translation(**fields).plain(plain_chat(message, finish_reason)))


def test_a_text_is_a_message() -> None:
    found = told({"content": "Hey"})
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": "Hey"}
    message = {"id": f"msg_{2:032x}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert (found["id"], found["object"], found["status"], found["model"]) == (f"resp_{1:032x}", "response", "completed", MODEL)
    assert (found["created_at"], found["completed_at"], found["error"], found["incomplete_details"]) == (NOW, NOW, None, None)
    assert found["output"] == [message]
    assert found["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 28,
    }


def test_reasoning_message_and_calls_come_in_this_order() -> None:
    calls = [
        {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}},
        {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": '{"input": "a\\nb"}'}},
    ]
    message = {"content": "so", "reasoning_content": "because", "refusal": "no", "tool_calls": calls}
    items = told(message, "tool_calls", tools=[FUNCTION, CUSTOM])["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert [item["id"].partition("_")[0] for item in items] == ["rs", "msg", "fc", "ctc"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "because"}]
    assert items[0]["encrypted_content"] is None
    assert [part["type"] for part in items[1]["content"]] == ["output_text", "refusal"]
    assert (items[2]["call_id"], items[2]["name"], items[2]["arguments"]) == ("c0", "look", '{"x":1}')
    assert (items[3]["call_id"], items[3]["name"], items[3]["input"]) == ("c1", "patch", "a\nb")


def test_an_answer_without_text_has_a_message_only_where_there_is_nothing_else() -> None:
    call = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert [item["type"] for item in told({"content": None, "tool_calls": [call]}, tools=[FUNCTION])["output"]] == ["function_call"]
    assert [item["type"] for item in told({"content": "", "reasoning": "hm"})["output"]] == ["reasoning"]
    assert told({"content": None})["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize(("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete(finish_reason: str, reason: str) -> None:
    calls = [{"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{"}}]
    found = told({"content": "so", "tool_calls": calls}, finish_reason, tools=[FUNCTION])
    assert (found["status"], found["incomplete_details"], found["completed_at"]) == ("incomplete", {"reason": reason}, None)
    assert [item["status"] for item in found["output"]] == ["completed", "incomplete"]


def test_forms_that_some_engines_write_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}, {"type": "thinking", "thinking": []}]
    assert told({"content": parts})["output"][0]["content"][0]["text"] == "aé"
    call = {"id": None, "function": {"name": "look", "arguments": {"x": "é"}}}
    (item,) = told({"tool_calls": [call]}, tools=[FUNCTION])["output"]
    assert json.loads(item["arguments"]) == {"x": "é"}
    assert item["call_id"].startswith("call_")


def test_log_probabilities_stand_in_the_part() -> None:
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    data = translation().plain(plain_chat({"content": "a"}, logprobs={"content": [one]}))
    assert response(data)["output"][0]["content"][0]["logprobs"] == [one]
    assert (
        response(translation().plain(plain_chat({"content": "a"}, logprobs={"content": None})))["output"][0]["content"][0]["logprobs"] == []
    )


def test_usage_that_nobody_reported_is_not_there() -> None:
    chat = json.loads(plain_chat({"content": "a"}))
    del chat["usage"], chat["model"]
    found = response(translation().plain(json.dumps(chat).encode()))
    assert "usage" not in found
    assert found["model"] == "m"
    assert USAGE["total_tokens"] == 28


def test_a_response_repeats_the_request() -> None:
    tools = [FUNCTION, CUSTOM]
    form = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}
    sent: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "flex",
        "temperature": 0.5,
        "text": {"format": form, "verbosity": "low"},
        "tool_choice": {"type": "custom", "name": "patch"},
        "tools": tools,
        "top_logprobs": 2,
        "top_p": 0.9,
        "user": "u",
    }
    found = told({"content": "x"}, **sent, store=True)
    assert {name: found[name] for name in sent} == sent
    assert found["store"] is False  # because nothing is stored


def test_a_response_to_a_bare_request_says_what_holds() -> None:
    found = told({"content": "x"})
    about = {
        name: found[name] for name in found.keys() - {"id", "output", "usage", "object", "created_at", "completed_at", "model", "status"}
    }
    assert about == {
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
    }


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": {"content": [5]}}]}'])
def test_a_body_that_is_no_reply_is_a_fault(body: bytes) -> None:
    with pytest.raises(Fault) as caught:
        translation().plain(body)
    assert caught.value.kind is Kind.INVALID_REPLY
