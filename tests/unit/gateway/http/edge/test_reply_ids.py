"""Replies get the gateway's id however the engine spells its own, and nothing else in them changes."""

import json

import pytest

from domain.ask import Endpoint
from gateway.http.edge.reply_ids import IdTap, reply_id

OWN = "req-1-abc"
HEARTBEAT, DONE = b": ping\n\n", b"data: [DONE]\n\n"


def chat(*, stream: bool) -> IdTap:
    return IdTap(Endpoint.CHAT, OWN, stream=stream)


@pytest.mark.parametrize(
    "written",
    [
        b'{"id":"x-7","a":"\\"id\\":\\"x-7\\""}',
        b'{"id": "x-7", "a": {"id": "x-7"}}',
        b'{"a":{"id":"x-7"},"id":"x-7"}',
        b'{ "id" : "x-7" }',
        b'{"id":"","a":""}',
        b'{"id":null}',
        b'{"id":7,"a":7}',
        b'{"id":"x\\u002d7","a":"x\\u002d7"}',
        b'{"\\u0069d":"x-7"}',
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_only_the_id_of_the_reply_is_another(written: bytes, stream: bool) -> None:
    tap = chat(stream=stream)
    for _ in range(3):
        out = tap.feed(b"data: %b\n\n" % written if stream else written)
        if stream:
            assert out.startswith(b"data: ")
            assert out.endswith(b"\n\n")
        assert json.loads(out.removeprefix(b"data: ")) == {**json.loads(written), "id": reply_id(Endpoint.CHAT, OWN)}
    assert tap.end() == b""


def test_several_events_at_once_with_other_ids_and_none() -> None:
    events = [b'data: {"id":"x-%d","n":%d}\n\n' % (number, number) for number in (7, 7, 8, 9)]
    out = chat(stream=True).feed(b"".join((*events[:2], HEARTBEAT, *events[2:], b'data: {"n":1}\n\n', DONE)))
    ours = [b'data: {"id":"chatcmpl-req-1-abc","n":%d}\n\n' % number for number in (7, 7, 8, 9)]
    assert out == b"".join((*ours[:2], HEARTBEAT, *ours[2:], b'data: {"n":1}\n\n', DONE))


def test_a_reply_without_an_id_stays_as_it_is() -> None:
    for written in (b'{"choices":[{"message":{"tool_calls":[{"id":"call_1"}]}}]}', b"{}"):
        assert chat(stream=False).feed(written) == written


def test_a_long_body_of_embeddings_comes_in_pieces() -> None:
    tap = IdTap(Endpoint.EMBEDDINGS, OWN, stream=False)
    pieces = [b'{"id":"x-7","data":[{"embedding":[0.5,', b"0.25]}", b'],"id": "x-7"}']
    assert b"".join(map(tap.feed, pieces)) == b'{"id":"embd-req-1-abc","data":[{"embedding":[0.5,0.25]}],"id": "embd-req-1-abc"}'
