"""Input items: the messages that they make, and what is refused with its place."""

from collections.abc import Callable
from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.http.openai.messages import messages as checks_for
from gateway.http.responses.items import ChatMessages, sealed
from gateway.http.responses.tools import ResponseTools
from policies.caps import USUAL_CAPS

PIXEL = "data:image/png;base64,iVBORw0KGgo="
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"x":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "because"}]}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "so"}]}

TOLD_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}


def told(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    made = ChatMessages(ResponseTools())
    if instructions is not None:
        made.add_instructions(instructions)
    made.add(list(items))
    checks_for(USUAL_CAPS, links=True)(made.messages, "messages")
    assert len(made.places) == len(made.messages)
    return made.messages


def test_a_string_is_what_the_user_says() -> None:
    made = ChatMessages(ResponseTools())
    made.add("hi")
    assert made.messages == [USER]


def test_one_turn_of_the_assistant_is_one_message() -> None:
    turn = {"role": "assistant", "content": "so", "reasoning_content": "because", "tool_calls": [TOLD_CALL, {**TOLD_CALL, "id": "c2"}]}
    results = [{"role": "tool", "tool_call_id": "c1", "content": "42"}, {"role": "tool", "tool_call_id": "c2", "content": "43"}]
    items = [USER, THOUGHT, SAID, CALL, {**CALL, "call_id": "c2"}, OUTPUT, {**OUTPUT, "call_id": "c2", "output": "43"}, USER]
    assert told(*items) == [USER, turn, *results, USER]


def test_the_turn_behind_a_result_is_another_one() -> None:
    messages = told(USER, THOUGHT, CALL, OUTPUT, {**THOUGHT, "content": [{"type": "reasoning_text", "text": "now"}]}, SAID)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.get("reasoning_content") for message in messages] == [None, "because", None, "now"]
    assert messages[1]["content"] is None


def test_neighbours_of_one_kind_are_joined() -> None:
    (_, turn) = told(USER, THOUGHT, SAID, THOUGHT, {"role": "assistant", "content": "and so"})
    assert (turn["content"], turn["reasoning_content"]) == ("so\nand so", "because\n\nbecause")


LONG = 8_000_000
SHORT_ITEMS = 45_000


@pytest.mark.parametrize(
    ("item", "member", "joint"),
    [
        (lambda text: {"role": "assistant", "content": text}, "content", "\n"),
        (lambda text: {"role": "assistant", "content": [{"type": "refusal", "refusal": text}]}, "refusal", "\n"),
        (lambda text: {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}, "reasoning_content", "\n\n"),
        (lambda text: {"role": "developer", "content": text}, "content", "\n\n"),
    ],
    ids=["texts", "refusals", "reasoning", "instructions"],
)
def test_short_neighbours_of_a_long_text_do_not_copy_it_each(item: Callable[[str], Any], member: str, joint: str) -> None:
    """Copied once for each neighbour it would be 360 GB; the test's time limit is the law."""
    made = ChatMessages(ResponseTools())
    made.add([item("h" * LONG), *[item("i")] * SHORT_ITEMS])
    (message,) = made.messages
    assert message[member] == joint.join(["h" * LONG, *["i"] * SHORT_ITEMS])
    assert made.places == [0]


def test_texts_of_several_turns_stay_apart() -> None:
    said = {"role": "assistant", "content": "more"}
    messages = told(SAID, said, said, USER, SAID, THOUGHT, said, THOUGHT, CALL, OUTPUT, said, instructions="be brief")
    assert [message.get("content") for message in messages] == ["be brief", "so\nmore\nmore", "hi", "so\nmore", "42", "more"]
    assert messages[3]["reasoning_content"] == "because\n\nbecause"


def test_a_refusal_is_kept_apart_from_the_text() -> None:
    (_, turn) = told(USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})
    assert turn == {"role": "assistant", "content": None, "refusal": "no"}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]}, "a\n\nb"),
        ({"summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ({"summary": [{"type": "summary_text", "text": "short"}], "content": [{"type": "reasoning_text", "text": "long"}]}, "long"),
        ({"summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": sealed("lông")}, "lông"),
        ({"summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": "gAAAAABp"}, "short"),
        ({"encrypted_content": "gAAAAABp"}, None),
        ({"encrypted_content": "tidegate-v1.###"}, None),
        ({"encrypted_content": "tidegate-v1./w=="}, None),
    ],
)
def test_reasoning_is_the_best_text_that_can_be_read(item: dict[str, Any], expected: str | None) -> None:
    turn = told(USER, {"type": "reasoning", "summary": [], **item}, SAID)[-1]
    assert turn.get("reasoning_content") == expected


def test_instructions_and_the_messages_behind_them_are_one_message() -> None:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be kind"}]}
    assert told(developer, USER, instructions="be brief") == [{"role": "system", "content": "be brief\n\nbe kind"}, USER]
    assert told(developer, USER, instructions="") == [{"role": "developer", "content": "be kind"}, USER]
    assert [message["role"] for message in told(USER, developer, instructions="be brief")] == ["system", "user", "developer"]


def test_parts_of_a_user_become_those_of_a_chat() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    parts = [
        {"type": "input_text", "text": "what?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
        {"type": "input_image", "image_url": "https://example.com/a.png"},
        audio,
    ]
    (message,) = told({"role": "user", "content": parts})
    assert message["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        audio,
    ]


def test_a_result_may_be_text_or_parts() -> None:
    image = {"type": "input_image", "image_url": PIXEL}
    assert told(USER, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "42"}]})[-1]["content"] == "42"
    assert told(USER, CALL, {**OUTPUT, "output": [image]})[-1]["content"] == [{"type": "image_url", "image_url": {"url": PIXEL}}]


def test_a_call_of_a_custom_tool_is_one_of_its_function() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a\n"b"é', "namespace": "files"}
    turn, result = told(custom, {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"})
    assert turn["tool_calls"][0]["function"] == {"name": "files__patch", "arguments": '{"input":"a\\n\\"b\\"é"}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "done"}


def test_tools_among_the_items_are_tools() -> None:
    made = ChatMessages(ResponseTools())
    made.add([{"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}, USER])
    assert list(made.tools.called) == ["late"]
    assert made.messages == [USER]


@pytest.mark.parametrize(
    ("item", "param", "kind"),
    [
        (5, "input[0]", Kind.INVALID_VALUE),
        ({}, "input[0].type", Kind.MISSING_PARAMETER),
        ({"type": 5}, "input[0].type", Kind.INVALID_VALUE),
        ({"type": "message", "content": "x"}, "input[0].role", Kind.MISSING_PARAMETER),
        ({"role": "tool", "content": "x"}, "input[0].role", Kind.INVALID_VALUE),
        ({"role": ["user"], "content": "x"}, "input[0].role", Kind.INVALID_VALUE),
        ({"role": "user"}, "input[0].content", Kind.MISSING_PARAMETER),
        ({"role": "user", "content": 5}, "input[0].content", Kind.INVALID_VALUE),
        ({"role": "assistant", "content": 5}, "input[0].content", Kind.INVALID_VALUE),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": PIXEL}]}, "input[0].content[0].type", Kind.INVALID_VALUE),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]", Kind.INVALID_VALUE),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text", Kind.MISSING_PARAMETER),
        ({"role": "user", "content": [{"type": "hologram"}]}, "input[0].content[0].type", Kind.INVALID_VALUE),
        ({"role": "user", "content": [{"type": ["x"]}]}, "input[0].content[0].type", Kind.INVALID_VALUE),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input[0].content[0].type", Kind.UNSUPPORTED_PARAMETER),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[0].content[0].file_id", Kind.UNSUPPORTED_PARAMETER),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url", Kind.MISSING_PARAMETER),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments", Kind.MISSING_PARAMETER),
        ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id", Kind.MISSING_PARAMETER),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id", Kind.MISSING_PARAMETER),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output", Kind.MISSING_PARAMETER),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[0].input", Kind.MISSING_PARAMETER),
        ({"type": "reasoning", "content": "x"}, "input[0].content", Kind.INVALID_VALUE),
        ({"type": "reasoning", "content": [5]}, "input[0].content[0]", Kind.INVALID_VALUE),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type", Kind.UNSUPPORTED_PARAMETER),
        ({"type": "compaction", "encrypted_content": "x"}, "input[0].type", Kind.UNSUPPORTED_PARAMETER),
        ({"type": "web_search_call"}, "input[0].type", Kind.UNSUPPORTED_PARAMETER),
        ({"type": "additional_tools"}, "input[0].tools", Kind.INVALID_VALUE),
    ],
)
def test_an_item_that_cannot_be_told_is_refused_with_its_place(item: Any, param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        told(item)
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert param in caught.value.message or kind is Kind.UNSUPPORTED_PARAMETER


@pytest.mark.parametrize("items", [[], 5, {"role": "user"}])
def test_an_input_that_is_no_list_of_items_is_refused(items: Any) -> None:
    with pytest.raises(Fault) as caught:
        ChatMessages(ResponseTools()).add(items)
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, "input")
