"""The events of a streamed Message. That they are the whole answer is in `tests/property/test_messages_translation.py`."""

import json
from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.anthropic.stream import HEARTBEAT, PING, MessageStream

SIGNER = ThinkingSigner(b"a secret of this test")
DONE = b"data: [DONE]\n\n"


def chunk(reason: str | None = None, **delta: Any) -> bytes:
    document = {"id": "chatcmpl-req-1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    return b"data: %b\n\n" % json.dumps(document).encode()


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {}), **more}


def events(sent: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.partition("\ndata: ")[2]) for block in sent.decode().split("\n\n") if block]


def kinds(sent: bytes) -> list[str]:
    return [event["type"] + (f" {event['index']}" if "index" in event else "") for event in events(sent)]


def test_the_events_of_a_short_answer() -> None:
    stream = MessageStream(SIGNER)
    begin = stream.feed(chunk(role="assistant", content=""))
    assert kinds(begin) == ["message_start", "ping"]
    assert events(begin)[0]["message"] == {
        "id": "msg_req-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0},
    }
    assert stream.feed(chunk(content="a\n\u2028")) == (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        b"event: content_block_delta\n"
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\n\\u2028"}}\n\n'
    )
    assert stream.feed(chunk("stop")) == b""
    assert kinds(stream.feed(DONE)) == ["content_block_stop 0", "message_delta", "message_stop"]


def test_a_heartbeat_is_a_ping_once_the_message_has_begun() -> None:
    stream = MessageStream(SIGNER)
    assert stream.feed(HEARTBEAT) == HEARTBEAT, "a comment, for no event comes before message_start"
    stream.feed(chunk(content="a"))
    assert stream.feed(HEARTBEAT) == PING


def test_calls_follow_each_other_as_they_become_whole() -> None:
    stream = MessageStream(SIGNER)
    stream.feed(chunk(content="look"))
    first = stream.feed(chunk(tool_calls=[call(0, '{"a"', id="t0", name="f")]))
    assert kinds(first) == ["content_block_stop 0", "content_block_start 1", "content_block_delta 1"]
    assert stream.feed(chunk(tool_calls=[call(0, ":1}")])) != b""
    second = stream.feed(chunk(tool_calls=[call(1, "{}", id="t1", name="g")]))
    assert kinds(second) == ["content_block_stop 1", "content_block_start 2", "content_block_delta 2"], "the first one is whole"


def test_what_comes_before_a_call_is_whole_waits_for_it() -> None:
    stream = MessageStream(SIGNER)
    stream.feed(chunk(tool_calls=[call(0, '{"a"', id="t0", name="f")]))
    assert stream.feed(chunk(tool_calls=[call(1, "{", id="t1", name="g")])) == b""
    assert stream.feed(chunk(content="and")) == b""
    assert kinds(stream.feed(chunk(tool_calls=[call(1, "}"), call(0, ":1}")]))) == ["content_block_delta 0"]
    end = stream.feed(chunk("tool_calls")) + stream.feed(DONE)
    assert kinds(end)[:6] == [
        "content_block_stop 0",
        "content_block_start 1",
        "content_block_delta 1",
        "content_block_delta 1",
        "content_block_stop 1",
        "content_block_start 2",
    ]
    assert events(end)[-3]["type"] == "content_block_stop"
    assert events(end)[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_thinking_under_both_names_is_said_once_and_signed() -> None:
    stream = MessageStream(SIGNER, manages_context=True)
    out = stream.feed(chunk(reasoning="h", reasoning_content="h")) + stream.feed(chunk(reasoning="m", reasoning_content=None))
    out += stream.feed(chunk(content="yes")) + stream.feed(chunk("stop")) + stream.feed(DONE)
    deltas = [event["delta"] for event in events(out) if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "h"},
        {"type": "thinking_delta", "thinking": "m"},
        {"type": "signature_delta", "signature": SIGNER.sign("hm")},
        {"type": "text_delta", "text": "yes"},
    ]
    assert events(out)[-2]["context_management"] == {"applied_edits": []}


def test_an_answer_that_says_nothing_is_a_message_too() -> None:
    assert kinds(MessageStream(SIGNER).feed(DONE)) == ["message_start", "ping", "message_delta", "message_stop"]


def test_calls_that_an_engine_numbers_alike_are_told_apart_by_their_ids() -> None:
    stream = MessageStream(SIGNER)
    out = stream.feed(chunk(tool_calls=[call(0, '{"a":1}', id="c1", name="f")]))
    out += stream.feed(chunk(tool_calls=[call(0, '{"b"', id="c2", name="g")])) + stream.feed(chunk(tool_calls=[call(0, ":2}")]))
    out += stream.feed(chunk("tool_calls")) + stream.feed(DONE)
    blocks = [event["content_block"] for event in events(out) if event["type"] == "content_block_start"]
    assert [(block["id"], block["name"]) for block in blocks] == [("c1", "f"), ("c2", "g")]
    pieces = [(event["index"], event["delta"]["partial_json"]) for event in events(out) if event["type"] == "content_block_delta"]
    assert pieces == [(0, '{"a":1}'), (1, '{"b"'), (1, ":2}")]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"choices":[{"index":0,"delta":null,"finish_reason":"stop"}]}',
        b'{"id":null,"model":null,"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"hi"}]}}]}',
        b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":null,"id":"c","function":null}]}}]}',
        b'{"choices":[{"index":0,"delta":{"content":7},"stop_reason":1.5}]}',
    ],
)
def test_what_chats_let_pass_is_no_fault_of_a_message(odd: bytes) -> None:
    stream = MessageStream(SIGNER)
    out = stream.feed(b"data: %b\n\n" % odd) + stream.feed(DONE)
    assert kinds(out)[-1] == "message_stop"
    texts = [event["delta"]["text"] for event in events(out) if event["type"] == "content_block_delta"]
    assert texts == (["hi"] if b'"hi"' in odd else [])


def test_an_event_that_is_no_part_of_an_answer_is_the_engines_fault() -> None:
    for odd in (b"data: {}\n\n", b'data: {"choices":[{"delta":{"tool_calls":5}}]}\n\n', b"data: " + b"x" * 1_048_577):
        with pytest.raises(Fault) as caught:
            MessageStream(SIGNER).feed(odd)
        assert caught.value.kind is Kind.INVALID_REPLY
