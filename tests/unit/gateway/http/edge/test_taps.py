import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Endpoint
from domain.faults import Kind
from domain.usage import Usage
from gateway.http.edge.taps import BUFFERED_REPLY_BYTES, DONE, PlainTap, RenameTap, StreamTap
from gateway.story import Story


def event(index: int = 0, text: str | None = " gate", finish: str | None = None, **fields: object) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}
    return b"data: %b\n\n" % json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
VLLM = event(text="") + event(text="\u00e9t\u00e9") + event() + event(finish="length") + USAGE + DONE
SGLANG = event(text="") + event() + event(text=None, finish="stop") + USAGE + DONE
SEVERAL = event(0) + event(1) + event(0, finish="stop") + event(1, finish="tool_calls") + USAGE + DONE


def tap(choices: int = 1, include_usage: bool = False) -> StreamTap:
    return StreamTap(Story("r", 0.0, 0.0, 0.0), lambda: 1.0, choices=choices, include_usage=include_usage)


def through(made: StreamTap, stream: bytes, step: int | None = None) -> bytes:
    step = step or len(stream) or 1
    return b"".join(made.feed(stream[i : i + step]) for i in range(0, len(stream), step)) + made.end()


@pytest.mark.parametrize(("stream", "choices"), [(VLLM, 1), (SGLANG, 1), (SEVERAL, 2)])
@pytest.mark.parametrize("include_usage", [True, False])
def test_whole_streams_pass_with_usage_only_when_asked(stream: bytes, choices: int, include_usage: bool) -> None:
    made = tap(choices, include_usage)
    assert through(made, stream) == (stream if include_usage else stream.replace(USAGE, b""))
    assert made.fault is None
    assert made.over
    assert made.fault is None
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.cached_tokens) == (3, 4, 2)


@pytest.mark.req("R54")
@given(st.integers(1, 200))
def test_the_output_does_not_depend_on_the_chunking(step: int) -> None:
    assert through(tap(), VLLM, step) == through(tap(), VLLM)


@pytest.mark.req("R1", "R2")
@given(st.integers(0, len(SEVERAL)))
def test_a_cut_stream_never_gets_a_done(at: int) -> None:
    made = tap(2)
    out = through(made, SEVERAL[:at])
    finished = SEVERAL[:at].count(b'"finish_reason":"') == 2 and SEVERAL[:at].endswith((b"\n\n", USAGE, DONE))
    assert (DONE in out) == (made.fault is None)
    if not finished:
        assert made.fault is not None
        assert DONE not in out
    whole = out.removesuffix(DONE)
    assert SEVERAL.replace(USAGE, b"").startswith(whole)
    assert whole == b"" or whole.endswith(b"\n\n")


@pytest.mark.req("R2")
@pytest.mark.parametrize("finish", ["abort", "error", "melted", None])
def test_done_proves_nothing(finish: str | None) -> None:
    made = tap()
    out = through(made, event() + event(finish=finish) + DONE)
    assert made.fault is not None
    assert made.fault.kind is Kind.ENGINE_ABORTED
    assert DONE not in out
    assert b"abort" not in out


def test_a_missing_done_is_added_when_every_choice_has_finished() -> None:
    made = tap()
    assert through(made, event() + event(finish="stop")).endswith(DONE)
    assert made.fault is None


@pytest.mark.parametrize(
    "bad",
    [
        b"data: not json\n\n",
        b'data: {"a":\n\n',
        b"data: []\n\n",
        b"data: 3\n\n",
        b'data: {"x":"\xff"}\n\n',
        b'data: {"error":{"message":"boom"}}\n\n',
        b'data: {"object":"error","message":"boom"}\n\n',
        b'data: {"choices":3}\n\n',
        b"data: {}\n\n",
        b'data: {"detail":"boom at /root/engine.py"}\n\n',
        b'event: error\ndata: {"message":"boom at 10.0.0.1"}\n\n',
        b'data: {"choices":[{"index":1,"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[{"index":-1,"finish_reason":"stop"}]}\n\n',
        b"data: " + b"[" * 5000 + b"\n\n",
    ],
)
def test_what_is_not_an_event_of_an_answer_ends_it(bad: bytes) -> None:
    made = tap()
    out = through(made, event() + bad + event(finish="stop") + DONE)
    assert out == event()
    assert made.fault is not None
    assert "boom" not in made.fault.message


def test_null_usage_and_running_usage_are_taken_out_unless_asked_for() -> None:
    null, running = event(usage=None), event(usage={"prompt_tokens": 1, "completion_tokens": 1})
    stream = null + running + event(finish="stop", usage=None) + USAGE + DONE
    out = through(tap(), stream)
    assert b"usage" not in out
    assert [json.loads(p[6:])["choices"] for p in out.split(b"\n\n") if p.startswith(b"data: {")] == [
        json.loads(p[6:])["choices"] for p in (null, running, event(finish="stop"))
    ]
    assert through(tap(include_usage=True), stream) == stream


def test_a_text_that_looks_like_usage_is_left_alone() -> None:
    quoted = event(text='say ,"usage":null and "error" and data: [DONE]\n\n twice', usage=None)
    out = through(tap(), quoted + event(finish="stop") + DONE)
    assert (
        json.loads(out.split(b"\n\n")[0][6:])["choices"][0]["delta"]["content"]
        == 'say ,"usage":null and "error" and data: [DONE]\n\n twice'
    )


@pytest.mark.parametrize(("said", "taken"), [(-5, 0), (10**30, 2**31 - 1), (2**31 - 1, 2**31 - 1)])
def test_no_reply_used_less_than_nothing_or_more_than_there_is(said: int, taken: int) -> None:
    made = tap()
    details = {"prompt_tokens_details": {"cached_tokens": said}, "completion_tokens_details": {"reasoning_tokens": said}}
    used = {"prompt_tokens": said, "completion_tokens": said, **details}
    through(made, event(finish="stop") + event(usage=used) + DONE)
    assert made.usage == Usage(taken, taken, taken, taken)


def test_the_last_usage_wins() -> None:
    made = tap()
    through(made, event(finish="stop") + USAGE + USAGE.replace(b'"completion_tokens":4', b'"completion_tokens":9') + DONE)
    assert made.usage is not None
    assert made.usage.completion_tokens == 9


def plain(body: bytes, choices: int = 1) -> tuple[PlainTap, bytes]:
    made = PlainTap(Story("r", 0.0, 0.0, 0.0), lambda: 1.0, Endpoint.CHAT if choices else Endpoint.EMBEDDINGS, choices=choices)
    assert made.feed(body[:10]) + made.feed(body[10:]) == b""
    return made, made.end()


def test_a_whole_plain_reply_passes_as_it_is() -> None:
    choices = b'[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]'
    body = b'{"id":"x","choices":%b,"usage":{"prompt_tokens":1,"completion_tokens":2}}' % choices
    made, out = plain(body)
    assert out == body
    assert made.usage is not None
    assert made.usage.total_tokens == 3
    embeddings = b'{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":1,"total_tokens":1}}'
    assert plain(embeddings, choices=0)[1] == embeddings


@pytest.mark.parametrize(
    "body", [b'{"ok":true,"more":1}', b'{"detail":"boom at /root"}', b'{"object":"list","data":[]}', b'{"error":{"a":1}}']
)
def test_a_reply_without_embeddings_never_passes(body: bytes) -> None:
    made, out = plain(body, choices=0)
    assert out == b""
    assert made.fault is not None


@pytest.mark.req("R2")
@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"index":0,"finish_reason":"abort"}]}',
        b'{"choices":[{"index":0,"finish_reason":null}]}',
        b'{"choices":[{"index":0}]}',
        b'{"choices":[]}',
        b'{"error":{"message":"x"}}',
        b'{"object":"error","message":"x"}',
        b"<html>xxxxxxxxxxx</html>",
        b'{"choices":[{"index":0,"finish_re',
    ],
)
def test_a_broken_plain_reply_never_passes(body: bytes) -> None:
    made, out = plain(body)
    assert out == b""
    assert made.fault is not None


def test_a_plain_reply_is_bounded() -> None:
    made = PlainTap(Story("r", 0.0, 0.0, 0.0), lambda: 1.0, Endpoint.CHAT, choices=1)
    for _ in range(BUFFERED_REPLY_BYTES // 65536 + 1):
        made.feed(b"x" * 65536)
    assert made.fault is not None
    assert made.fault.kind is Kind.INVALID_REPLY


def test_the_public_name_replaces_the_served_one_and_nothing_else() -> None:
    renamed = RenameTap({"org/m-1"}, 'pub"\\name')
    out = renamed.feed(
        b'data: {"model":"org/m-1","t":"\\"model\\":\\"org/m-1\\""}\n\ndata: {"model": "org/m-1"}\n\ndata: {"model":"other"}\n\n'
    )
    events = [json.loads(p[6:]) for p in out.split(b"\n\n") if p]
    assert [e["model"] for e in events] == ['pub"\\name', 'pub"\\name', "other"]
    assert events[0]["t"] == '"model":"org/m-1"'


@pytest.mark.req("R43")
@pytest.mark.parametrize("names", [frozenset({"m"}), frozenset({"a", "m"}), None])
def test_an_answer_in_a_listed_name_passes(names: frozenset[str] | None) -> None:
    made = StreamTap(Story("r", 0.0, 0.0, 0.0), lambda: 0.0, choices=1, include_usage=False, names=names)
    assert b'"model":"m"' in event()
    answer = event() + event() + event(finish="stop") + DONE
    assert through(made, answer) == answer
    assert made.fault is None


@pytest.mark.req("R43")
def test_an_answer_in_another_name_is_not_passed_on() -> None:
    made = StreamTap(Story("r", 0.0, 0.0, 0.0), lambda: 0.0, choices=1, include_usage=False, names=frozenset({"m"}))
    swapped = event().replace(b'"model":"m"', b'"model":"swapped"')
    assert through(made, swapped + event(finish="stop") + DONE) == b""
    assert made.fault is not None
    assert made.fault.kind is Kind.WRONG_MODEL
    assert "swapped" not in made.fault.message
    judged = PlainTap(Story("r", 0.0, 0.0, 0.0), lambda: 0.0, Endpoint.CHAT, choices=1, names=frozenset({"m"}))
    judged.feed(b'{"model":"swapped","choices":[{"index":0,"finish_reason":"stop"}]}')
    assert judged.end() == b""
    assert judged.fault is not None
    assert judged.fault.kind is Kind.WRONG_MODEL


def test_every_name_an_engine_has_for_its_model_is_replaced() -> None:
    renamed = RenameTap({"a", "b.c"}, "public")
    out = renamed.feed(b'{"model":"a"} {"model":"b.c"} {"model":"bxc"}')
    assert out == b'{"model":"public"} {"model":"public"} {"model":"bxc"}'
