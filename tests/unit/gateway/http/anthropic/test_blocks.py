"""Blocks of content become messages of a chat; what cannot is refused by the path of its block."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.http.anthropic import blocks
from gateway.http.anthropic.signatures import ThinkingSigner

SIGNER = ThinkingSigner(b"a secret of this test")
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def chat_messages(system: object, turns: object, signer: ThinkingSigner) -> list[blocks.Block]:
    messages, places = blocks.chat_messages(system, turns, signer)
    assert len(places) == len(messages)
    return messages


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def text(of: str) -> dict[str, Any]:
    return {"type": "text", "text": of}


def test_the_billing_line_of_claude_code_is_no_part_of_the_prompt() -> None:
    """Its value changes with every request: the router and the cache would see a new prompt each time."""
    prompts = [
        chat_messages([text(f"x-anthropic-billing-header: cc_version=2.1; cch={value};"), text("You are a tool.")], [], SIGNER)
        for value in ("a", "b")
    ]
    assert prompts[0] == prompts[1] == [{"role": "system", "content": "You are a tool."}]
    assert chat_messages("x-anthropic-billing-header: a\nYou", [], SIGNER) == [{"role": "system", "content": "You"}]
    assert chat_messages("x-anthropic-billing-header: a", [], SIGNER) == []
    assert chat_messages("Say x-anthropic-billing-header: a", [], SIGNER)[0]["content"].startswith("Say x-anthropic"), (
        "only at the beginning"
    )


def test_blocks_of_system_are_one_message() -> None:
    system = [text("One.") | {"cache_control": {"type": "ephemeral"}}, text("Two.")]
    assert chat_messages(system, [user(text("hi"))], SIGNER) == [
        {"role": "system", "content": "One.\n\nTwo."},
        {"role": "user", "content": "hi"},
    ]


def test_turns_of_one_role_are_one_turn() -> None:
    turns = [
        {"role": "user", "content": "a"},
        user(text("b"), IMAGE),
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    assert chat_messages(None, turns, SIGNER) == [
        {"role": "user", "content": [text("a"), text("b"), PART]},
        {"role": "assistant", "content": "cd"},
    ]


def test_results_of_tools_stand_in_front_of_the_rest_of_their_turn() -> None:
    turn = user(
        text("and now?"),
        {"type": "tool_result", "tool_use_id": "t1", "content": [text("one"), IMAGE, text("two")]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "three"},
        {"type": "tool_result", "tool_use_id": "t3"},
        {"type": "tool_result", "tool_use_id": "t4", "is_error": True},
    )
    assert chat_messages(None, [turn], SIGNER) == [
        {"role": "tool", "tool_call_id": "t1", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "t2", "content": "three"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "tool", "tool_call_id": "t4", "content": "The tool failed."},
        {"role": "user", "content": [text("and now?"), PART]},
    ]


def test_thinking_comes_back_with_its_signature_alone() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": SIGNER.sign("hm")}
    turn = {"role": "assistant", "content": [signed, text("yes"), {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]}
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert chat_messages(None, [turn], SIGNER) == [{"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": [call]}]
    for other in (signed | {"thinking": "hm!"}, signed | {"signature": ThinkingSigner(b"another secret").sign("hm")}):
        with pytest.raises(Fault, match="was not made here") as caught:
            chat_messages(None, [{"role": "assistant", "content": [other]}], SIGNER)
        assert caught.value.param == "messages.0.content.0.signature"


def test_documents_and_search_results_are_texts() -> None:
    plain = {"type": "document", "title": "Log", "source": {"type": "text", "media_type": "text/plain", "data": "rain"}}
    blocks = {"type": "document", "source": {"type": "content", "content": [text("a"), IMAGE]}}
    found = {"type": "search_result", "title": "T", "source": "https://a.example", "content": [text("x"), text("y")]}
    [message] = chat_messages(None, [user(plain, blocks, found)], SIGNER)
    assert message["content"] == [text("Log"), text("rain"), text("a"), PART, text("T\nhttps://a.example\nx\ny")]


@pytest.mark.parametrize(
    ("turn", "kind", "param"),
    [
        ("hi", Kind.INVALID_VALUE, "messages.0"),
        ({"content": "x"}, Kind.MISSING_PARAMETER, "messages.0.role"),
        ({"role": "tool", "content": "x"}, Kind.INVALID_VALUE, "messages.0.role"),
        ({"role": "user"}, Kind.MISSING_PARAMETER, "messages.0.content"),
        ({"role": "user", "content": 7}, Kind.INVALID_VALUE, "messages.0.content"),
        (user("x"), Kind.INVALID_VALUE, "messages.0.content.0"),
        (user({}), Kind.MISSING_PARAMETER, "messages.0.content.0.type"),
        (user({"type": "text"}), Kind.MISSING_PARAMETER, "messages.0.content.0.text"),
        (user({"type": "hologram"}), Kind.INVALID_VALUE, "messages.0.content.0.type"),
        (user({"type": "tool_result", "content": "x"}), Kind.MISSING_PARAMETER, "messages.0.content.0.tool_use_id"),
        (
            user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            Kind.UNSUPPORTED_PARAMETER,
            "messages.0.content.0.source.type",
        ),
        (user({"type": "document", "source": {"type": "base64", "data": "x"}}), Kind.UNSUPPORTED_PARAMETER, "messages.0.content.0.source"),
        (
            user({"type": "document", "citations": {"enabled": True}, "source": {"type": "text", "data": "x"}}),
            Kind.UNSUPPORTED_PARAMETER,
            "messages.0.content.0.citations",
        ),
        (
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
            Kind.UNSUPPORTED_PARAMETER,
            "messages.0.content.0.type",
        ),
        ({"role": "assistant", "content": [{"type": "server_tool_use"}]}, Kind.UNSUPPORTED_PARAMETER, "messages.0.content.0.type"),
        ({"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]}, Kind.INVALID_VALUE, "messages.0.content.0.input"),
    ],
)
def test_a_refusal_names_the_block(turn: Any, kind: Kind, param: str) -> None:
    with pytest.raises(Fault) as caught:
        chat_messages(None, [turn], SIGNER)
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert param in caught.value.message


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_many_turns_of_one_role_are_joined_once(role: str) -> None:
    """Joined one by one, these would copy 50 GB."""
    turns = [{"role": role, "content": "x" * 1_000_000}, *({"role": role, "content": "y"} for _ in range(49_000))]
    [message] = chat_messages(None, turns, SIGNER)
    content = message["content"]
    assert len(content) == (49_001 if role == "user" else 1_049_000)


def test_each_message_knows_its_field() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    turns = [{"role": "user", "content": "a"}, user(text("b")), {"role": "assistant", "content": "c"}, user(text("d"), result)]
    assert blocks.chat_messages("s", turns, SIGNER)[1] == ["system", "messages.0", "messages.2", "messages.3.content.1", "messages.3"]
