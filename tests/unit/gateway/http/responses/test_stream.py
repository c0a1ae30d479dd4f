"""Events of a Response: which, in which order, with which texts."""

import json
from typing import Any

import pytest

from domain.faults import Fault, Kind
from tests.responses_wire import CUSTOM, FUNCTION, call, chunk, events, sse, translation, usage_chunk

FAULT = Fault(Kind.BROKEN_STREAM, "The engine failed. Try again.")


def types(found: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def only(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in found if event["type"] == f"response.{kind}"]


def test_a_text_is_told_by_these_events() -> None:
    data = sse(
        chunk({"role": "assistant", "content": ""}), chunk({"content": "He"}), chunk({"content": "y"}), chunk({}, "stop"), usage_chunk()
    )
    found = events(translation(stream=True).feed(data))
    assert types(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(10))
    assert only(found, "output_text.done")[0]["text"] == "Hey"
    assert found[-1]["response"]["output"] == [only(found, "output_item.done")[0]["item"]]
    assert found[-1]["response"]["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 28,
    }


def test_reasoning_text_and_refusal_are_parts_of_their_items() -> None:
    data = sse(chunk({"reasoning_content": "hm"}), chunk({"content": "No"}), chunk({"refusal": "I cannot"}), chunk({}, "stop"))
    found = events(translation(stream=True).feed(data))
    reasoning, message = found[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]
    assert only(found, "reasoning_text.done")[0]["text"] == "hm"
    assert only(found, "refusal.delta")[0]["content_index"] == 1
    # reasoning ends where text begins, so a client sees that the model is done thinking
    assert types(found).index("reasoning_text.done") < types(found).index("output_text.delta")


@pytest.mark.parametrize("member", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(member: str) -> None:
    found = events(translation(stream=True).feed(sse(chunk({member: "a"}), chunk({member: "b"}), chunk({}, "stop"))))
    assert [event["delta"] for event in only(found, "reasoning_text.delta")] == ["a", "b"]
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["reasoning"]


def test_calls_that_take_turns_stay_apart() -> None:
    pieces = [
        call(0, "", "look", "c0"),
        call(1, '{"input": "a\\', "patch", "c1"),
        call(0, '{"x"'),
        call(1, "n\\ud83d\\ude"),
        call(0, ":1}"),
        call(1, '00"}'),
        chunk({}, "tool_calls"),
    ]
    found = events(translation(stream=True, tools=[FUNCTION, CUSTOM]).feed(sse(*pieces)))
    function, custom = found[-1]["response"]["output"]
    assert (function["type"], function["call_id"], function["name"], function["arguments"]) == ("function_call", "c0", "look", '{"x":1}')
    assert (custom["type"], custom["call_id"], custom["name"], custom["input"]) == ("custom_tool_call", "c1", "patch", "a\n😀")
    assert "".join(event["delta"] for event in only(found, "function_call_arguments.delta")) == '{"x":1}'
    assert [event["delta"] for event in only(found, "custom_tool_call_input.delta")] == ["a", "\n", "😀"]
    assert only(found, "custom_tool_call_input.done")[0]["input"] == "a\n😀"


@pytest.mark.parametrize("index", [0, None])
def test_calls_under_one_index_are_told_by_their_ids(index: Any) -> None:
    pieces = [call(index, "{}", "look", "c0"), call(index, '{"y"', "look", "c1"), call(index, ":2}"), chunk({}, "tool_calls")]
    output = events(translation(stream=True, tools=[FUNCTION]).feed(sse(*pieces)))[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"]) for item in output] == [("c0", "{}"), ("c1", '{"y":2}')]


def test_a_call_waits_for_its_name_and_gets_an_id() -> None:
    pieces = [call(0, '{"x"'), call(0, ":1", "look"), call(0, "}"), chunk({}, "tool_calls")]
    (item,) = events(translation(stream=True, tools=[FUNCTION]).feed(sse(*pieces)))[-1]["response"]["output"]
    assert (item["name"], item["arguments"]) == ("look", '{"x":1}')
    assert item["call_id"].startswith("call_")


def test_a_tool_of_a_namespace_gets_its_name_back() -> None:
    tools = [{"type": "namespace", "name": "files", "description": "d", "tools": [FUNCTION]}]
    found = events(translation(stream=True, tools=tools).feed(sse(call(0, "{}", "files__look", "c0"), chunk({}, "tool_calls"))))
    (item,) = found[-1]["response"]["output"]
    assert (item["namespace"], item["name"]) == ("files", "look")


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    found = events(translation(stream=True).feed(sse(chunk({"content": ""}), chunk({}, "stop"))))
    (item,) = found[-1]["response"]["output"]
    assert item["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": ""}]


@pytest.mark.parametrize(("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete(finish_reason: str, reason: str) -> None:
    found = events(translation(stream=True).feed(sse(chunk({"reasoning": "r"}), chunk({"content": "half"}), chunk({}, finish_reason))))
    last = found[-1]
    assert last["type"] == "response.incomplete"
    assert (last["response"]["status"], last["response"]["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert last["response"]["output"][-1]["status"] == "incomplete"
    assert last["response"]["completed_at"] is None


def test_log_probabilities_stand_in_the_delta_and_in_the_part() -> None:
    def of(token: str) -> dict[str, Any]:
        top = [{"token": token, "logprob": -0.5, "bytes": [97]}]
        return {"content": [{"token": token, "logprob": -0.5, "bytes": [97], "top_logprobs": top}]}

    data = sse(chunk({"content": "a"}, logprobs=of("a")), chunk({"content": "b"}, logprobs=of("b")), chunk({}, "stop"))
    found = events(translation(stream=True, include=["message.output_text.logprobs"]).feed(data))
    assert [event["logprobs"][0]["token"] for event in only(found, "output_text.delta")] == ["a", "b"]
    both = [of("a")["content"][0], of("b")["content"][0]]
    assert only(found, "output_text.done")[0]["logprobs"] == both
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == both


def test_a_heartbeat_passes_between_events() -> None:
    made = translation(stream=True)
    assert made.feed(b": ping\n\n") == b": ping\n\n"
    made.feed(sse(chunk({"content": "a"}), done=False))
    assert made.feed(b": ping\n\n") == b": ping\n\n"


def test_nothing_comes_behind_the_end() -> None:
    made = translation(stream=True)
    assert b"[DONE]" not in made.feed(sse(chunk({"content": "a"}), chunk({}, "stop")))
    assert made.feed(sse(chunk({"content": "b"}))) == b""
    assert made.broken(FAULT, "r") == b""


def test_a_stream_that_breaks_ends_with_a_failed_response() -> None:
    made = translation(stream=True)
    before = events(made.feed(sse(chunk({"reasoning": "r"}), chunk({"content": "half"}), done=False)))
    (last,) = events(made.broken(FAULT, "req_1"))
    assert (last["type"], last["sequence_number"]) == ("response.failed", len(before))
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": FAULT.message}
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]
    assert made.feed(sse(chunk({"content": "more"}))) == b""


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.TOKEN_LIMIT, "rate_limit_exceeded"),
        (Kind.GUARD_BLOCKED, "invalid_prompt"),
        (Kind.SLOW_READER, "server_error"),
        (Kind.ENGINE_ABORTED, "server_error"),
    ],
)
def test_a_failed_response_has_a_code_that_the_api_knows(kind: Kind, code: str) -> None:
    made = translation(stream=True)
    made.feed(sse(chunk({"content": "half"}), done=False))
    (last,) = events(made.broken(Fault(kind, "why"), "req_1"))
    assert last["response"]["error"]["code"] == code


def test_a_stream_that_breaks_before_its_first_event_is_an_error() -> None:
    (last,) = events(translation(stream=True).broken(FAULT, "req_1"))
    assert (last["type"], last["code"], last["message"], last["param"]) == ("error", "upstream_error", FAULT.message, None)
    # where the official client looks, and raises
    assert last["error"] == {
        "type": "server_error",
        "code": "upstream_error",
        "message": FAULT.message,
        "param": None,
        "request_id": "req_1",
    }


@pytest.mark.parametrize("event", [b"data: {\n\n", b'data: {"choices": [{"delta": {"tool_calls": 5}}]}\n\n', b"data: " + b"x" * 1_048_577])
def test_an_event_that_cannot_be_read_breaks_the_stream(event: bytes) -> None:
    made = translation(stream=True)
    made.feed(sse(chunk({"content": "half"}), done=False))
    with pytest.raises(Fault) as caught:
        made.feed(event)
    assert caught.value.kind is Kind.INVALID_REPLY
    (last,) = events(made.broken(caught.value, "req_1"))
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")


def test_bytes_that_are_no_text_break_nothing() -> None:
    data = sse(chunk({"reasoning": "a~"}), call(0, '{"input": "~"}', "patch", "c0"), chunk({}, "stop")).replace(b"~", b"\xff")
    told = translation(stream=True, tools=[CUSTOM], include=["reasoning.encrypted_content"]).feed(data)
    reasoning, custom = events(told.replace(b"\xff", b"~"))[-1]["response"]["output"]
    assert (reasoning["content"][0]["text"], custom["input"]) == ("a~", "\ufffd")


def test_reasoning_is_sealed_for_callers_who_ask_for_it() -> None:
    data = sse(chunk({"reasoning": "because"}), chunk({"content": "x"}), chunk({}, "stop"))
    found = events(translation(stream=True, store=False, include=["reasoning.encrypted_content"]).feed(data))
    item = found[-1]["response"]["output"][0]
    again = translation()
    chat = json.loads(
        again.request(json.dumps({"model": "m", "input": [{**item, "content": None}, {"role": "user", "content": "?"}]}).encode())
    )
    assert chat["messages"][0]["reasoning_content"] == "because"
