import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.usage import Usage
from gateway.http.edge.long_reply import MAX_KEPT_BYTES
from gateway.http.edge.reply_chain import ReplyChain, Tap
from gateway.http.edge.reply_document import UsageOfChoices
from gateway.http.edge.taps import DONE, PlainTap, RenameTap, StreamTap, taps_for
from gateway.http.openai import interpret
from gateway.story import AttemptFacts, Story
from tests.stories import with_facts


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
    return StreamTap(AttemptFacts(), lambda: 1.0, choices=choices, include_usage=include_usage)


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
@pytest.mark.parametrize("end", [b"", DONE])
def test_of_several_choices_each_has_to_finish(end: bytes) -> None:
    made = tap(2)
    assert through(made, event(0) + event(1) + event(0, finish="stop") + end) == event(0) + event(1) + event(0, finish="stop")
    assert made.fault is not None and "1 of 2 finish reasons" in (made.fault.detail or "")


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


def test_an_event_that_says_nothing_is_dropped() -> None:
    """llama.cpp begins the stream of a completion with several prompts by `data: null`."""
    made = tap(2)
    assert made.feed(b"data: null\n\n") == b""
    assert (made.fault, made.answer.events) == (None, 0), "no answer has begun"
    assert through(made, SEVERAL) == SEVERAL.replace(USAGE, b"")
    assert made.fault is None


def of_choice(index: int, prompt: int, completion: int, cached: int | None = None) -> bytes:
    """The last event of one choice of llama.cpp, with the usage of that choice."""
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return event(index, finish="length", usage=usage)


@pytest.mark.parametrize(
    ("prompts", "reports", "usage", "cached"),
    [
        (2, [(0, 3, 5, 1), (1, 4, 6, 2)], Usage(7, 11, 3), 3),
        (1, [(1, 3, 5, 0), (0, 3, 6, 3)], Usage(3, 11, 1), 1),
        (2, [(0, 3, 5), (1, 4, 6, 2)], Usage(7, 11), None),
        (2, [(0, 3, 5, 1)], None, None),
    ],
    ids=["two prompts", "two choices of one prompt", "a report without cached tokens", "one report of two"],
)
def test_reports_of_single_choices_are_added_up(
    prompts: int, reports: list[tuple[int, ...]], usage: Usage | None, cached: int | None
) -> None:
    """Billed is the sum; of a stream that ends before all have reported, what was delivered."""
    made = tap(2)
    made.of_choices = UsageOfChoices(2, prompts)
    for report in reports:
        made.feed(of_choice(*report))
    assert (made.usage, made.cached) == (usage, cached)


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


@pytest.mark.parametrize(("said", "taken"), [(-5, -5), (10**30, 10**18), (-(10**30), -(10**18)), (2**31, 2**31)])
def test_a_usage_is_read_as_it_was_written_and_its_numbers_are_short(said: int, taken: int) -> None:
    made = tap()
    details = {"prompt_tokens_details": {"cached_tokens": said}, "completion_tokens_details": {"reasoning_tokens": said}}
    used = {"prompt_tokens": said, "completion_tokens": said, **details}
    through(made, event(finish="stop") + event(usage=used) + DONE)
    assert made.usage == Usage(taken, taken, max(0, taken), taken)


def test_the_last_usage_wins() -> None:
    made = tap()
    through(made, event(finish="stop") + USAGE + USAGE.replace(b'"completion_tokens":4', b'"completion_tokens":9') + DONE)
    assert made.usage is not None
    assert made.usage.completion_tokens == 9


def plain(body: bytes, choices: int = 1) -> tuple[PlainTap, bytes]:
    made = PlainTap(AttemptFacts(), lambda: 1.0, Endpoint.CHAT if choices else Endpoint.EMBEDDINGS, choices=choices)
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


@pytest.mark.parametrize("error", [b'{"error":{"message":"x"}}', b'{"error":"x"}', b'{"object":"error","message":"x"}'])
def test_an_error_in_a_reply_is_told_from_one_that_cannot_be_read(error: bytes) -> None:
    streamed = tap()
    through(streamed, event() + b"data: %b\n\n" % error)
    for fault in (streamed.fault, plain(error)[0].fault):
        assert fault is not None
        assert fault.kind is Kind.ENGINE_ABORTED


def test_a_plain_reply_is_bounded() -> None:
    made = PlainTap(AttemptFacts(), lambda: 1.0, Endpoint.CHAT, choices=1)
    for _ in range(MAX_KEPT_BYTES // 65536 + 1):
        made.feed(b"x" * 65536)
    assert made.fault is not None
    assert made.fault.kind is Kind.INVALID_REPLY


def embeddings(count: int, **fields: object) -> bytes:
    vector = [-0.001234567 * n for n in range(1024)]
    data = [{"object": "embedding", "index": n, "embedding": vector} for n in range(count)]
    body = {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    return json.dumps({**body, **fields}).encode()


def passed(body: bytes, step: int = 65_536, names: frozenset[str] | None = None) -> tuple[PlainTap, bytes]:
    made = PlainTap(AttemptFacts(), lambda: 1.0, Endpoint.EMBEDDINGS, choices=1, names=names)
    out = b"".join([made.feed(body[at : at + step]) for at in range(0, len(body), step)])
    return made, out + (made.end() if made.fault is None else b"")


def test_many_embeddings_stream_through_and_are_judged_at_the_end() -> None:
    body = embeddings(640)
    assert len(body) > 8 * 1024 * 1024
    made, out = passed(body)
    assert (made.fault, out) == (None, body)
    assert made.usage is not None
    assert made.usage.prompt_tokens == 9
    assert made.long is not None
    assert made.long.size < 100_000, "vectors are not kept"


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("damage", ["cut", "number", "error"])
def test_damage_in_a_long_reply_ends_it_short(damage: str, encoded: bool) -> None:
    body = embeddings(120)
    if encoded:
        body = body.replace(json.dumps([-0.001234567 * n for n in range(1024)]).encode(), b'"%b"' % (b"AAAA" * 5000))
    broken = {
        "cut": body[:-1],
        "number": body[: len(body) // 2] + b"\x01]" + body[len(body) // 2 :],
        "error": body[:-1] + b',"error":{"message":"boom"}}',
    }[damage]
    made, out = passed(broken)
    assert made.fault is not None
    assert len(out) < len(broken)
    assert broken.startswith(out)


def test_a_long_reply_of_another_model_is_stopped_before_its_first_byte() -> None:
    body = b'{"model":"other",' + embeddings(120)[1:].replace(b'"model": "m", ', b"")
    made, out = passed(body, names=frozenset({"m"}))
    assert out == b""
    assert made.fault is not None
    assert made.fault.kind is Kind.WRONG_MODEL


@given(st.integers(500, 70_000))
@settings(max_examples=8, deadline=None)
def test_a_name_is_replaced_wherever_a_long_reply_was_cut(step: int) -> None:
    body = embeddings(90, model="org/m-1")
    body = body.replace(b'"index": 40', b'"model": "org/m-1", "index": 40')
    judge = PlainTap(AttemptFacts(), lambda: 1.0, Endpoint.EMBEDDINGS, choices=1)
    chain = ReplyChain([judge, RenameTap({"org/m-1"}, "public")], judge)
    out = b"".join([chain.feed(body[at : at + step]) for at in range(0, len(body), step)]) + chain.end()
    assert chain.fault is None
    assert out == body.replace(b"org/m-1", b"public")


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
    made = StreamTap(AttemptFacts(), lambda: 0.0, choices=1, include_usage=False, names=names)
    assert b'"model":"m"' in event()
    answer = event() + event() + event(finish="stop") + DONE
    assert through(made, answer) == answer
    assert made.fault is None


@pytest.mark.req("R43")
@pytest.mark.parametrize("late", [event().replace(b'"model":"m"', b'"model":"x"'), event(finish="stop").replace(b'"m"', b'"x"')])
@pytest.mark.parametrize("together", [False, True])
def test_another_name_in_the_middle_of_a_stream_ends_it(late: bytes, together: bool) -> None:
    made = StreamTap(AttemptFacts(), lambda: 0.0, choices=1, include_usage=False, names=frozenset({"m"}))
    pieces = (event(), event(), late, event(finish="stop"), DONE)
    out = made.feed(b"".join(pieces)) if together else b"".join(map(made.feed, pieces))
    assert out == event() + event()
    assert made.fault is not None
    assert made.fault.kind is Kind.WRONG_MODEL


@pytest.mark.req("R43")
def test_an_answer_in_another_name_is_not_passed_on() -> None:
    made = StreamTap(AttemptFacts(), lambda: 0.0, choices=1, include_usage=False, names=frozenset({"m"}))
    swapped = event().replace(b'"model":"m"', b'"model":"swapped"')
    assert through(made, swapped + event(finish="stop") + DONE) == b""
    assert made.fault is not None
    assert made.fault.kind is Kind.WRONG_MODEL
    assert "swapped" not in made.fault.message
    judged = PlainTap(AttemptFacts(), lambda: 0.0, Endpoint.CHAT, choices=1, names=frozenset({"m"}))
    judged.feed(b'{"model":"swapped","choices":[{"index":0,"finish_reason":"stop"}]}')
    assert judged.end() == b""
    assert judged.fault is not None
    assert judged.fault.kind is Kind.WRONG_MODEL


def test_every_name_an_engine_has_for_its_model_is_replaced() -> None:
    renamed = RenameTap({"a", "b.c"}, "public")
    out = renamed.feed(b'{"model":"a"} {"model":"b.c"} {"model":"bxc"}')
    assert out == b'{"model":"public"} {"model":"public"} {"model":"bxc"}'


@pytest.mark.parametrize(
    "written",
    [
        rb'"model":"org\/m-1"',
        rb'"model" : "\u006frg/m-1"',
        rb'"model":"\u006Frg\/m\u002D1"',
        rb'"m\u006fdel":"org/m-1"',
        rb'"\u006dodel":"org\/m-1"',
    ],
)
def test_a_name_is_replaced_however_its_json_is_written(written: bytes) -> None:
    renamed = RenameTap({"org/m-1"}, "public")
    text = rb'"text":"\"model\":\"org\/m-1\" \u00e9 \\","other":"org\/m-1"'
    out = renamed.feed(b"data: {%b,%b}\n\n" % (text, written))
    assert json.loads(out[6:]) == {"model": "public", "text": '"model":"org/m-1" \u00e9 \\', "other": "org/m-1"}
    assert text in out


def test_a_name_beyond_ascii_is_replaced_in_either_form() -> None:
    renamed = RenameTap({"mod\u00e9l-\U0001f600"}, "public")
    assert renamed.feed('{"model":"mod\u00e9l-\U0001f600"}'.encode()) == b'{"model":"public"}'
    assert renamed.feed(rb'{"model":"mod\u00e9l-\ud83d\ude00"}') == b'{"model":"public"}'
    broken = rb'{"model":"\ud83d\/"}'
    assert renamed.feed(broken) == broken


class Window:
    """A guard's hold-back window: lets everything but the last `size` bytes go on, and those at the end."""

    over = False
    fault: Fault | None = None

    def __init__(self, size: int = 10**6, forbidden: bytes = b"\0") -> None:
        self.size, self.forbidden, self.held = size, forbidden, b""
        self.ended = 0

    def feed(self, data: bytes) -> bytes:
        self.held += data
        good, found, _ = self.held.partition(self.forbidden)
        if found:
            self._fail()
            return good
        out, self.held = self.held[: -self.size], self.held[-self.size :]
        return out

    def end(self) -> bytes:
        self.ended += 1
        out, self.held = self.held, b""
        return out

    def _fail(self) -> None:
        self.over, self.fault = True, Fault(Kind.INVALID_REPLY, "forbidden")


class Recorder:
    """A cache's recorder: keeps what went on, and nothing of an answer that was not whole."""

    over = False
    fault: Fault | None = None

    def __init__(self) -> None:
        self.seen, self.kept = b"", b""

    def feed(self, data: bytes) -> bytes:
        self.seen += data
        return data

    def end(self) -> bytes:
        self.kept = self.seen
        return b""


class Failing(Recorder):
    """Fails at the end, with its last bytes good."""

    def end(self) -> bytes:
        self.over, self.fault = True, Fault(Kind.INVALID_REPLY, "at the end")
        return b"last"


class Upper:
    """A dialect's translation, in front of the judge."""

    over = False
    fault: Fault | None = None

    def feed(self, data: bytes) -> bytes:
        return data.replace(b"%", b'"')

    def end(self) -> bytes:
        return b""


def chained(judge: StreamTap, *after: Tap, before: tuple[Tap, ...] = ()) -> ReplyChain:
    return ReplyChain((*before, judge, *after), judge)


def fed(chain: Tap, stream: bytes, step: int = 50) -> bytes:
    out = b"".join([chain.feed(stream[at : at + step]) for at in range(0, len(stream), step)])
    return out if chain.over else out + chain.end()


@pytest.mark.parametrize("step", [7, 50, 10**6])
def test_a_window_holds_bytes_back_and_releases_them_through_the_taps_behind_it(step: int) -> None:
    window, recorder = Window(size=30), Recorder()
    chain = chained(tap(), RenameTap({"m"}, "public"), window, recorder)
    assert fed(chain, SGLANG, step) == SGLANG.replace(USAGE, b"").replace(b'"model":"m"', b'"model":"public"')
    assert (chain.over, chain.fault, window.ended) == (True, None, 1)
    assert recorder.kept.endswith(DONE)
    assert chain.usage is not None


def test_the_end_of_a_stream_ends_every_tap_once_in_order() -> None:
    windows = Window(), Window(), Window()
    chain = chained(tap(), *windows)
    assert chain.feed(SGLANG[:200]) == b""
    assert fed(chain, SGLANG[200:]) == SGLANG.replace(USAGE, b"")
    assert [window.ended for window in windows] == [1, 1, 1]
    assert (chain.feed(SGLANG), chain.end()) == (b"", b"")


def test_a_stream_without_done_is_completed_behind_a_window_as_well() -> None:
    chain = chained(tap(), Window())
    assert chain.feed(event() + event(finish="stop")) == b""
    assert chain.end() == event() + event(finish="stop") + DONE


def test_any_tap_can_end_the_reply_behind_the_good_bytes_before_its_fault() -> None:
    recorder = Recorder()
    chain = chained(tap(), Window(size=1, forbidden=b"secret"), recorder)
    first = chain.feed(event(text="fine"))
    rest = chain.feed(event(text="a secret"))
    assert (chain.over, chain.fault is not None) == (True, True)
    assert (first + rest).endswith(b'"content":"a ')
    assert (recorder.seen, recorder.kept) == (first + rest, b""), "it has seen them, and keeps nothing of an answer that failed"
    assert chain.feed(event()) == b""


def test_a_tap_can_fail_at_the_end() -> None:
    behind = Window(size=1)
    chain = chained(tap(), Failing(), behind)
    assert fed(chain, SGLANG).endswith(b"las")
    assert chain.fault is not None
    assert chain.fault.message == "at the end"
    assert behind.ended == 0, "what a window holds back of an answer that failed stays there"


def test_of_a_judges_fault_nothing_that_was_held_back_goes_on() -> None:
    chain = chained(tap(), Window())
    assert fed(chain, event() + event(finish="abort")) == b""
    assert chain.fault is not None
    assert chain.fault.kind is Kind.ENGINE_ABORTED


def test_a_translation_stands_in_front_of_the_judge() -> None:
    chain = chained(tap(), before=(Upper(),))
    assert fed(chain, SGLANG.replace(b'"', b"%"), step=10**6) == SGLANG.replace(USAGE, b"")
    assert chain.fault is None


def test_the_chain_of_an_answer_under_its_own_name_is_its_judge_alone() -> None:
    story = with_facts(Story("r", 0.0, 0.0, 0.0), model="m")
    ask = Ask(Endpoint.CHAT, "m", b"{}", True, False, 1, 9, None)
    assert isinstance(taps_for(ask, story, lambda: 0.0, "m", frozenset({"m"})), StreamTap)
    plain = msgspec.structs.replace(ask, stream=False)
    assert isinstance(taps_for(plain, story, lambda: 0.0, "m", None), PlainTap)
    renamed = taps_for(ask, story, lambda: 0.0, "served", None)
    assert fed(renamed, SGLANG.replace(b'"model":"m"', b'"model":"served"')) == SGLANG.replace(USAGE, b"")
    several = taps_for(ask, story, lambda: 0.0, "m", frozenset({"m", "alias"}))
    assert fed(several, SGLANG.replace(b'"model":"m"', b'"model":"alias"')) == SGLANG.replace(USAGE, b"")


def progress(processed: int, **choice: object) -> bytes:
    """An event of llama.cpp's server with `return_progress`, as recorded."""
    said = {"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}, **choice}
    body = {"choices": [said], "created": 1, "id": "c", "model": "m", "object": "chat.completion.chunk"}
    return (
        b"data: %b\n\n" % json.dumps({**body, "prompt_progress": {"total": 731, "cache": 0, "processed": processed, "time_ms": 9}}).encode()
    )


@pytest.mark.parametrize("step", [None, 1, 7])
def test_progress_of_the_prompt_is_passed_on_and_is_no_token(step: int | None) -> None:
    made = tap()
    made.most_events = 4.0
    stream = b"".join(progress(at) for at in range(0, 731, 64)) + event() + event(finish="stop") + DONE
    assert through(made, stream, step) == stream
    assert made.fault is None
    assert made.answer.events == 2


@pytest.mark.parametrize(
    "choice", [{"delta": {"content": "x"}}, {"text": "x"}, {"delta": {"reasoning_content": "x"}}, {"delta": {"tool_calls": [{}]}}]
)
def test_what_says_something_counts_as_a_token_beside_progress_too(choice: dict[str, object]) -> None:
    made = tap()
    made.most_events = 4.0
    through(made, b"".join(progress(at, **choice) for at in range(8)))
    assert made.fault is not None and "past its cap" in (made.fault.detail or "")


def test_a_finish_reason_beside_progress_counts() -> None:
    made = tap()
    through(made, progress(1) + progress(2, finish_reason="stop") + DONE)
    assert (made.fault, made.answer.events) == (None, 1)


def vectors(prompt: object, *items: object) -> Tap:
    """A reply with these items to a request for embeddings, judged."""
    ask = interpret(Endpoint.EMBEDDINGS, json.dumps({"model": "m", "input": prompt}).encode())
    made = taps_for(ask, with_facts(Story("r", 0.0, 0.0, 0.0), model="m"), lambda: 1.0, "m", None)
    made.feed(json.dumps({"object": "list", "model": "m", "data": items, "usage": {"prompt_tokens": 3, "total_tokens": 3}}).encode())
    made.end()
    return made


VECTOR = {"object": "embedding", "index": 0, "embedding": [0.5, -1]}
ENCODED = {**VECTOR, "embedding": "AACAPw=="}


@pytest.mark.parametrize(
    ("prompt", "items"),
    [
        ("a", [VECTOR]),
        (["a"], [ENCODED]),
        (["a", "b"], [VECTOR, VECTOR]),
        ([1, 2, 3], [VECTOR]),
        ([[1, 2], [3]], [VECTOR, {**VECTOR, "embedding": [[0.5], [1]]}]),
    ],
)
def test_a_vector_for_each_input_is_a_whole_answer(prompt: object, items: list[object]) -> None:
    assert vectors(prompt, *items).fault is None


@pytest.mark.parametrize(
    ("prompt", "items"),
    [
        ("a", [{**VECTOR, "embedding": None}]),
        ("a", [{"object": "embedding", "index": 0}]),
        ("a", [{**VECTOR, "embedding": {}}]),
        ("a", [{**VECTOR, "embedding": 5}]),
        (["a", "b"], [VECTOR]),
        (["a", "b"], [VECTOR, {**VECTOR, "embedding": None}]),
        (["a", "b", "c"], [ENCODED, ENCODED]),
        ([[1, 2], [3]], [VECTOR]),
    ],
)
def test_missing_vectors_are_the_engines_fault(prompt: object, items: list[object]) -> None:
    fault = vectors(prompt, *items).fault
    assert fault is not None and fault.kind is Kind.INVALID_REPLY


def test_missing_vectors_end_a_long_reply_short() -> None:
    body = embeddings(120)
    ask = interpret(Endpoint.EMBEDDINGS, json.dumps({"model": "m", "input": ["a"] * 121}).encode())
    made = taps_for(ask, with_facts(Story("r", 0.0, 0.0, 0.0), model="m"), lambda: 1.0, "m", None)
    assert made.feed(body) != b""
    assert made.end() == b""
    assert made.fault is not None and "120 of 121" in (made.fault.detail or "")


def judged(endpoint: Endpoint, request: dict[str, object], reply: object) -> Tap:
    """A reply to a request for which nothing is generated."""
    ask = interpret(endpoint, json.dumps({"model": "m", **request}).encode())
    made = taps_for(ask, with_facts(Story("r", 0.0, 0.0, 0.0), model="m"), lambda: 1.0, "m", None)
    made.feed(json.dumps(reply).encode())
    made.end()
    return made


PAIRS = {"text_1": "a", "text_2": ["b", "c"]}
INPUTS = {"input": ["a", "b"]}
DOCUMENTS = {"query": "q", "documents": ["a", "b"]}
RANKED = [{"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": -1}]


@pytest.mark.parametrize(
    ("endpoint", "request_", "reply", "tokens"),
    [
        (Endpoint.SCORE, PAIRS, {"data": [{"score": 0}, {"score": -0.5}], "usage": {"total_tokens": 7}}, 7),
        (Endpoint.SCORE, PAIRS, {"data": [{"score": 0}, {"score": 1}], "usage": {"prompt_tokens": 5, "total_tokens": 7}}, 5),
        (Endpoint.CLASSIFY, INPUTS, {"data": [{"probs": [1.0]}, {"probs": [0.5, 0.5]}]}, None),
        (Endpoint.POOLING, INPUTS, {"data": [{"data": [[0.5]]}, {"data": "AAAA"}]}, None),
        (Endpoint.RERANK, DOCUMENTS, {"results": RANKED, "usage": {"total_tokens": 9}}, 9),
        (Endpoint.RERANK, {**DOCUMENTS, "top_n": 1}, {"results": RANKED[:1]}, None),
        (Endpoint.RERANK, DOCUMENTS, [{"index": at, "score": 0.1, "meta_info": {"prompt_tokens": 4}} for at in (1, 0)], 8),
        (Endpoint.RERANK, DOCUMENTS, [{"index": 1, "score": 0.1, "meta_info": {"prompt_tokens": 4}}, {"index": 0, "score": 0}], None),
        (Endpoint.TOKENIZE, {"prompt": "a"}, {"tokens": [], "count": 0, "usage": {"prompt_tokens": 9}}, None),
        (Endpoint.TOKENIZE, {"content": "a"}, {"tokens": [{"id": 1, "piece": "a"}]}, None),
        (Endpoint.DETOKENIZE, {"tokens": [1]}, {"prompt": ""}, None),
        (Endpoint.DETOKENIZE, {"tokens": [1]}, {"content": "a"}, None),
        (Endpoint.DETOKENIZE, {"tokens": [[1], [2]]}, {"text": ["a", "b"]}, None),
    ],
)
def test_scores_are_whole_and_their_usage_is_read(
    endpoint: Endpoint, request_: dict[str, object], reply: object, tokens: int | None
) -> None:
    made = judged(endpoint, request_, reply)
    assert made.fault is None
    assert (made.usage and made.usage.prompt_tokens) == tokens  # type: ignore[attr-defined]  # every chain of an attempt has it


@pytest.mark.parametrize(
    ("endpoint", "request_", "reply"),
    [
        (Endpoint.SCORE, PAIRS, {"data": [{"score": 0}]}),
        (Endpoint.SCORE, PAIRS, {"data": [{"score": 0}, {"score": None}]}),
        (Endpoint.SCORE, PAIRS, {"scores": [[0.1], [0.2]]}),
        (Endpoint.SCORE, PAIRS, [{"score": 0}, {"score": 1}]),
        (Endpoint.CLASSIFY, INPUTS, {"data": [{"probs": [1.0]}, {"label": "a"}]}),
        (Endpoint.POOLING, INPUTS, {"data": [{"data": [0.5]}, {"data": None}]}),
        (Endpoint.RERANK, DOCUMENTS, {"results": RANKED[:1]}),
        (Endpoint.RERANK, DOCUMENTS, {"results": []}),
        (Endpoint.RERANK, DOCUMENTS, {"results": [RANKED[0], RANKED[0]]}),
        (Endpoint.RERANK, DOCUMENTS, {"results": [RANKED[0], {**RANKED[1], "index": 2}]}),
        (Endpoint.RERANK, DOCUMENTS, {"results": [RANKED[0], {**RANKED[1], "index": -1}]}),
        (Endpoint.RERANK, DOCUMENTS, []),
        (Endpoint.RERANK, DOCUMENTS, {"error": {"message": "x"}, "results": RANKED}),
        (Endpoint.TOKENIZE, {"prompt": "a"}, {}),
        (Endpoint.TOKENIZE, {"prompt": "a"}, {"count": 1, "prompt": "a"}),
        (Endpoint.TOKENIZE, {"prompt": "a"}, {"count": 1, "tokens": None}),
        (Endpoint.TOKENIZE, {"prompt": "a"}, {"tokens": 5}),
        (Endpoint.TOKENIZE, {"prompt": "a"}, [1]),
        (Endpoint.TOKENIZE, {"prompt": "a"}, {"object": "error", "tokens": [1]}),
        (Endpoint.DETOKENIZE, {"tokens": [1]}, {"tokens": [1]}),
        (Endpoint.DETOKENIZE, {"tokens": [1]}, {"error": {"message": "x"}, "prompt": "a"}),
    ],
)
def test_missing_scores_are_the_engines_fault(endpoint: Endpoint, request_: dict[str, object], reply: object) -> None:
    assert judged(endpoint, request_, reply).fault is not None


def test_a_long_order_of_documents_is_held_whole_and_written_anew() -> None:
    text = "long " * 200_000
    reply = [{"index": at, "score": at / 2, "document": text, "meta_info": {"prompt_tokens": 4}} for at in (0, 1)]
    ask = interpret(Endpoint.RERANK, json.dumps({"model": "m", "query": "q", "documents": [text, "b"]}).encode())
    made = taps_for(ask, with_facts(Story("r", 0.0, 0.0, 0.0), model="m"), lambda: 1.0, "m", None)
    body = json.dumps(reply).encode()
    assert [made.feed(body[at : at + 65_536]) for at in range(0, len(body), 65_536)] == [b""] * -(-len(body) // 65_536)
    assert [row["index"] for row in json.loads(made.end())["results"]] == [1, 0]
    assert made.usage is not None and made.usage.prompt_tokens == 8
