"""A streamed and a plain reply make one document, and a document makes both again."""

import json
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Endpoint
from domain.usage import Usage
from gateway.answers.documents import NotKept, document_of
from gateway.answers.replay import PIECE_CHARS, pieces, plain_reply, stream_events

USAGE = Usage(7, 9)
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}


def chat(content: str | None, finish: str = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "logprobs": None, "finish_reason": finish}
    return json.dumps(
        {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": {"prompt_tokens": 1}}
    ).encode()


def events(endpoint: Endpoint, document: bytes, *, include_usage: bool = True) -> bytes:
    return b"".join(data for _, data in stream_events(endpoint, document, "new", 2, USAGE, include_usage=include_usage))


def refusal(reply: bytes, *, stream: bool, tools: bool) -> str:
    """Why a reply is not kept."""
    with pytest.raises(NotKept) as refused:
        document_of(Endpoint.CHAT, reply, stream=stream, tools=tools)
    return refused.value.reason


def message_of(reply: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(reply)["choices"][0]["message"]
    return {name: value for name, value in message.items() if value is not None}


@given(st.text(max_size=300), st.text(max_size=100))
def test_text_and_reasoning_survive_plain_to_stream_to_plain(content: str, reasoning: str) -> None:
    document = document_of(Endpoint.CHAT, chat(content, reasoning_content=reasoning), stream=False, tools=False)
    again = document_of(Endpoint.CHAT, events(Endpoint.CHAT, document), stream=True, tools=False)
    message = message_of(plain_reply(again, "y", 3, USAGE))
    assert (message.get("content") or "") == content
    assert (message.get("reasoning_content") or "") == reasoning


@given(st.text(max_size=300))
def test_completions_survive_too(text: str) -> None:
    reply = json.dumps(
        {"id": "x", "object": "text_completion", "model": "m", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    )
    document = document_of(Endpoint.COMPLETIONS, reply.encode(), stream=False, tools=False)
    again = document_of(Endpoint.COMPLETIONS, events(Endpoint.COMPLETIONS, document), stream=True, tools=False)
    assert json.loads(plain_reply(again, "y", 3, USAGE))["choices"][0]["text"] == text


def test_tool_calls_survive_and_are_kept_only_where_policy_says_so() -> None:
    reply = chat(None, "tool_calls", tool_calls=[TOOL_CALL])
    assert refusal(reply, stream=False, tools=False) == "tools"
    document = document_of(Endpoint.CHAT, reply, stream=False, tools=True)
    again = document_of(Endpoint.CHAT, events(Endpoint.CHAT, document), stream=True, tools=True)
    assert message_of(plain_reply(again, "y", 3, USAGE))["tool_calls"] == [TOOL_CALL]


@pytest.mark.parametrize(("finish", "reason"), [("length", "length"), ("content_filter", "finish"), ("abort", "finish"), ("", "finish")])
def test_an_answer_that_did_not_end_by_itself_is_not_kept(finish: str, reason: str) -> None:
    assert refusal(chat("cut", finish), stream=False, tools=True) == reason


@pytest.mark.parametrize("part", [{"delta": {"audio": {"data": "x"}}}, {"delta": {"content": "a"}, "token_ids": [1]}])
def test_an_event_that_cannot_be_replayed_is_not_kept(part: dict[str, Any]) -> None:
    event = {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": "stop", **part}]}
    assert refusal(b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n", stream=True, tools=True) == "form"


@pytest.mark.parametrize("reply", [b"", b"[]", b"{}", b'{"choices": []}', b"\xff", b'{"choices": [1]}', b"data: {}\n\n"])
def test_what_is_no_reply_is_not_kept(reply: bytes) -> None:
    for stream in (True, False):
        assert refusal(reply, stream=stream, tools=True) == "form"


def test_a_replay_has_an_id_a_time_and_a_usage_of_its_own() -> None:
    document = document_of(Endpoint.CHAT, chat("hello"), stream=False, tools=False)
    reply = json.loads(plain_reply(document, "new", 2, USAGE))
    assert (reply["id"], reply["created"], reply["usage"]["total_tokens"]) == ("new", 2, 16)
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    raw = events(Endpoint.CHAT, document)
    parsed = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    assert {event["id"] for event in parsed} == {"new"}
    assert parsed[-1]["usage"]["total_tokens"] == 16
    assert raw.endswith(b"data: [DONE]\n\n")
    assert b"usage" not in events(Endpoint.CHAT, document, include_usage=False)


CLUSTERS = st.lists(
    st.sampled_from(["a", " ", "\r\n", "é", "👩‍👩‍👧‍👦", "🇩🇪", "각", "한", "👍🏽", "नि", "\u200d", "\u0301", "漢"]), max_size=120
).map("".join)


@given(CLUSTERS)
def test_pieces_join_to_the_text_and_cut_no_character(text: str) -> None:
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert all(len(piece) >= PIECE_CHARS for piece in cut[:-1])
    edges = {match.end() for match in regex.finditer(r"\X", text)}
    at = 0
    for piece in cut:
        at += len(piece)
        assert at in edges
