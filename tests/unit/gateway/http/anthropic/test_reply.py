"""A chat's whole reply as a Message. What survives of any answer is in `tests/property/test_messages_translation.py`."""

import json
from typing import Any

import pytest

from gateway.http.anthropic.reply import message_of
from gateway.http.anthropic.signatures import ThinkingSigner

SIGNER = ThinkingSigner(b"a secret of this test")


def message(choice: dict[str, Any], *, manages_context: bool = False, **fields: Any) -> dict[str, Any]:
    chat = {"id": "chatcmpl-req-1", "model": "m", "choices": [{"index": 0, "message": {"content": "hi"}} | choice]} | fields
    made: dict[str, Any] = json.loads(message_of(json.dumps(chat).encode(), SIGNER, manages_context=manages_context))
    return made


def test_a_message() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 7}}
    assert message({"finish_reason": "stop"}, usage=usage) == {
        "id": "msg_req-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 7, "output_tokens": 4},
    }


@pytest.mark.parametrize(
    ("choice", "reason", "sequence"),
    [
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"finish_reason": "content_filter"}, "refusal", None),
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "matched_stop": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "stop_reason": 151645}, "end_turn", None),
        ({"finish_reason": "stop", "message": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}, "tool_use", None),
    ],
)
def test_reasons_to_stop(choice: dict[str, Any], reason: str, sequence: str | None) -> None:
    made = message(choice)
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"a":1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1}), ("[1]", {"arguments": [1]}), ('{"a":', {"arguments": '{"a":'})],
)
def test_arguments_are_an_object_and_nothing_of_them_is_lost(arguments: object, given: dict[str, Any]) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}}, {"id": "own", "function": {"name": "g"}}]
    content = message({"finish_reason": "tool_calls", "message": {"tool_calls": calls}})["content"]
    assert content[0] == {"type": "tool_use", "id": "toolu_req-1_0", "name": "f", "input": given}
    assert content[1]["id"] == "own"


def test_a_refusal_is_text_and_managed_context_is_told() -> None:
    made = message({"finish_reason": "stop", "message": {"refusal": "no"}}, manages_context=True)
    assert made["content"] == [{"type": "text", "text": "no"}]
    assert made["context_management"] == {"applied_edits": []}


def test_odd_members_that_chats_let_pass_are_read_as_far_as_they_say_something() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    made = message(
        {"finish_reason": "stop", "message": {"content": parts, "tool_calls": [{"function": None}]}, "stop_reason": 1.5}, id=None
    )
    assert made["content"] == [{"type": "text", "text": "hi"}, {"type": "tool_use", "id": "toolu__0", "name": "", "input": {}}]
