"""Guard rules over streamed answers: what is released, held, changed and cut, whatever the engine's events look like."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Endpoint
from domain.faults import Kind
from domain.usage import Usage
from gateway.guards.reply_channels import MAX_CHANNELS
from gateway.guards.reply_parts import Path
from gateway.http.edge.taps import StreamTap
from guardrails.placeholders import Placeholders
from tests.guarded_replies import (
    CONTENT,
    DONE,
    REASONING,
    REFUSAL,
    TEXT,
    TRANSCRIPT,
    VENDOR,
    Guarded,
    Seen,
    arguments,
    asked,
    event,
    events_of,
    guards,
    role,
    streamed,
    usage_event,
)

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
CARD = {"kind": "pattern", "pattern": "[0-9]{4}-[0-9]{4}-[0-9]{4}-[0-9]{4}", "mode": "redact"}
STOP = {"kind": "words", "words": ["kraken"], "mode": "block"}
NUMBER = "4111-1111-1111-1111"
PATHS = (CONTENT, REASONING, REFUSAL, TRANSCRIPT, VENDOR, arguments(0), arguments(1))


def pieces(path: Path, *texts: str, index: int = 0) -> bytes:
    endpoint = COMPLETIONS if path == TEXT else CHAT
    return b"".join([event(endpoint, index, path, text) for text in texts])


def end(endpoint: Endpoint = CHAT, index: int = 0, finish: str = "stop") -> bytes:
    return event(endpoint, index, finish=finish)


def test_a_request_without_rules_for_answers_has_no_tap() -> None:
    assert isinstance(Guarded(asked()).chain, StreamTap)
    assert isinstance(Guarded(asked(), guards({**STOP, "on": ["input"]})).chain, StreamTap)
    assert isinstance(Guarded(asked(), placeholders=Placeholders(random.Random(1))).chain, StreamTap), "nothing is to be restored"


def test_rules_that_only_flag_let_every_byte_go_on_at_once() -> None:
    stream = role() + pieces(CONTENT, "the kra", "ken and ", NUMBER) + end()
    made = Guarded(asked(), guards({**STOP, "mode": "flag"}, {**CARD, "mode": "shadow"}))
    for one in stream.split(b"\n\n")[:-1]:
        assert made.chain.feed(one + b"\n\n") == one + b"\n\n"
    assert not made.story.attempt.held
    assert made.story.guarded.word == "flagged"
    assert made.story.guarded.counts == {("r0", "word", "flag", "output"): 1, ("r1", "pattern", "shadow", "output"): 1}


@pytest.mark.req("R24")
@pytest.mark.parametrize("path", [*PATHS, TEXT])
def test_a_value_that_is_split_anywhere_in_any_text_never_leaks(path: Path) -> None:
    endpoint = COMPLETIONS if path == TEXT else CHAT
    text = f"pay with {NUMBER} now"
    rules = guards(CARD)
    for cut in itertools.chain.from_iterable(itertools.combinations(range(len(text) + 1), size) for size in (1, 2)):
        edges = [0, *cut, len(text)]
        stream = pieces(path, *[text[a:b] for a, b in itertools.pairwise(edges)]) + end(endpoint) + DONE
        made = Guarded(asked(endpoint), rules)
        out = made.fed(stream)
        assert streamed(out)[0].texts == {path: "pay with [PATTERN] now"}
        assert out.endswith(DONE)
    assert made.story.guarded.word == "changed"


texts_ = st.text(alphabet='a-4é\u200b\U0001f600"\\ ', max_size=40)


@pytest.mark.req("R24")
@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from([0, 1]), texts_), max_size=12), st.lists(st.integers(0, 4000), max_size=6)
)
def test_safe_text_is_never_changed_however_events_and_chunks_are_cut(said: list[tuple[Path, int, str]], cuts: list[int]) -> None:
    stream = role(0) + role(1) + b"".join([event(CHAT, index, path, text) for path, index, text in said]) + end() + end(index=1) + DONE
    made = Guarded(asked(choices=2), guards(CARD, STOP))
    seen = streamed(made.fed(stream, sorted(cut for cut in cuts if cut < len(stream))))
    assert seen == streamed(stream)
    assert made.chain.fault is None
    assert made.story.guarded.word == "passed"


@pytest.mark.req("R24")
def test_ten_thousand_splits_never_leak_and_change_nothing_safe() -> None:
    """Values between safe texts, in events cut at random, over several texts of two choices at once."""
    rng = random.Random(24)
    rules = guards(CARD)
    cases = 0
    while cases < 10_000:
        said: dict[tuple[int, Path], str] = {}
        queues = []
        for index, path in rng.sample(list(itertools.product((0, 1), PATHS)), 3):
            text = " ".join(rng.choices(["so", NUMBER, "4111-", "ü", '\\n"', "12"], k=rng.randint(1, 5)))
            said[index, path] = text
            edges = sorted({0, len(text), *rng.choices(range(len(text) + 1), k=rng.randint(1, 5))})
            queues.append([event(CHAT, index, path, text[a:b]) for a, b in itertools.pairwise(edges)])
            cases += len(edges) - 1
        stream = b""
        while queues := [queue for queue in queues if queue]:
            stream += rng.choice(queues).pop(0)
        seen = streamed(Guarded(asked(choices=2), rules).fed(stream + end() + end(index=1) + DONE))
        for (index, path), text in said.items():
            assert seen[index].texts.get(path, "") == rules.chain("output").judge(text).text


def test_an_event_goes_on_as_it_came_where_no_rule_holds_it_and_later_where_one_does() -> None:
    events = [event(CHAT, 0, CONTENT, text) for text in ("It ", "is ", "here. ")]
    made = Guarded(asked(), guards({**STOP, "on": ["tool_arguments"]}))
    first, *rest = [made.chain.feed(one) for one in (role(), *events)]
    assert (first, rest) == (b"", [role() + events[0], *events[1:]])
    numbers = [event(CHAT, 0, CONTENT, text) for text in ("4111", "-", "1111")]
    made = Guarded(asked(), guards(CARD))
    assert b"".join([made.chain.feed(one) for one in (role(), *numbers)]) == b"", "it may still become a card"
    assert made.chain.feed(end()) == role() + event(CHAT, 0, CONTENT, "4111-1111", finish="stop")


def test_a_block_cuts_with_what_was_safe_and_ends_the_answer_with_its_usage() -> None:
    made = Guarded(asked(usage=True), guards(STOP))
    stream = role() + pieces(CONTENT, "Look, a ", "kra", "ken", "! and", " more", " and more", " of it", " to come")
    out = made.fed(stream)
    seen = streamed(out)[0]
    assert (seen.texts, seen.finish) == ({CONTENT: "Look, a "}, "content_filter")
    assert out.endswith(DONE)
    last = list(events_of(out))[-1]
    attempt = made.story.attempt
    assert attempt.cut is not None
    assert (last["choices"], last["id"], last["model"]) == ([], "c", "m")
    assert last["usage"]["completion_tokens"] == attempt.cut.completion_tokens == attempt.events
    assert last["usage"]["total_tokens"] == attempt.cut.total_tokens > attempt.cut.completion_tokens
    assert attempt.declined
    assert (made.story.guarded.ended, made.story.guarded.by) == ("block", "r0")
    assert made.chain.fault is None
    assert made.chain.over
    assert made.chain.feed(pieces(CONTENT, "kraken")) == b""


def test_a_caller_who_did_not_ask_for_the_usage_gets_none_after_a_cut() -> None:
    out = Guarded(asked(), guards(STOP)).fed(pieces(CONTENT, "a kraken", "." * 50, "." * 50))
    assert out.endswith(b'"finish_reason":"content_filter"}]}\n\n' + DONE)


def test_a_block_at_the_end_takes_the_place_of_the_engines_finish() -> None:
    made = Guarded(asked(usage=True), guards(STOP))
    out = made.fed(role() + pieces(CONTENT, "a kraken") + end() + usage_event(3, 4) + DONE)
    seen = streamed(out)[0]
    assert (seen.texts, seen.finish) == ({CONTENT: "a "}, "content_filter")
    assert out.endswith(usage_event(3, 4) + DONE), "the engine is done, so its own usage counts"
    assert made.story.attempt.cut is None
    assert made.story.attempt.declined


def test_of_two_choices_one_is_cut_and_the_other_goes_on() -> None:
    made = Guarded(asked(choices=2), guards(STOP))
    stream = (
        pieces(CONTENT, "a kraken.", "." * 60, "." * 60) + pieces(CONTENT, "a whale", index=1) + pieces(CONTENT, " again") + end(index=1)
    )
    out = made.fed(stream)
    seen = streamed(out)
    assert (seen[0].texts, seen[0].finish) == ({CONTENT: "a "}, "content_filter")
    assert (seen[1].texts, seen[1].finish) == ({CONTENT: "a whale"}, "stop")
    assert out.endswith(DONE)
    assert made.story.attempt.cut is not None, "the engine goes on with the first choice"


def test_where_the_engine_has_ended_every_choice_nothing_is_cut_short() -> None:
    made = Guarded(asked(choices=2), guards(STOP))
    stream = pieces(CONTENT, "a kraken.", "." * 60, "." * 60) + end() + pieces(CONTENT, "a whale", index=1) + end(index=1)
    before_end = made.fed(stream)
    assert streamed(before_end)[1].texts == {CONTENT: "a whale"}
    assert made.story.attempt.cut is None
    assert made.story.attempt.declined


def test_a_cut_drops_what_other_texts_of_the_choice_still_held() -> None:
    stream = pieces(REASONING, "think of 4111-") + pieces(CONTENT, "a kraken", "." * 80, "." * 80)
    seen = streamed(Guarded(asked(), guards(CARD, STOP)).fed(stream))[0]
    assert seen.finish == "content_filter"
    assert not any(NUMBER[:5] in text for text in seen.texts.values())


def test_what_is_held_of_calls_goes_into_the_event_that_ends_the_choice() -> None:
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "pay", "arguments": ""}}
    first = b"data: %b\n\n" % msgspec.json.encode(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "model": "m",
            "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}],
        }
    )
    stream = first + pieces(arguments(0), '{"card":', f'"{NUMBER}"', "}") + end(finish="tool_calls") + DONE
    out = Guarded(asked(), guards(CARD)).fed(stream)
    assert streamed(out)[0].texts == {(*arguments(0)[:-1], "name"): "pay", arguments(0): '{"card":"[PATTERN]"}'}
    assert streamed(out)[0].finish == "tool_calls"
    assert next(events_of(out))["choices"][0]["delta"]["tool_calls"] == [call], "ids and names of calls are no text"


@pytest.mark.parametrize("member", ["function", "custom"])
def test_the_name_of_a_called_tool_is_a_text_that_the_model_has_written(member: str) -> None:
    def called(name: str) -> bytes:
        return pieces((*arguments(0)[:-2], member, "name"), name)

    told = (*arguments(0)[:-2], member, "name")
    out = Guarded(asked(), guards(CARD, STOP)).fed(role() + called(f"pay_{NUMBER}") + end() + DONE)
    assert streamed(out)[0].texts == {told: "pay_[PATTERN]"}
    out = Guarded(asked(), guards(CARD, STOP)).fed(role() + called("kraken") + end() + DONE)
    assert streamed(out)[0] == Seen({}, "content_filter")
    shape = {"kind": "json_schema", "schema": {"type": "object"}, "mode": "block"}
    out = Guarded(asked(), guards(shape)).fed(role() + called("find") + end() + DONE)
    assert streamed(out)[0] == Seen({told: "find"}, "stop"), "a name is no JSON, and need not be"


def test_in_arguments_that_are_an_object_every_string_is_a_text() -> None:
    given = {"name": f"card {NUMBER}", "type": "x", "id": NUMBER}
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "pay", "arguments": given}}
    stream = b"data: %b\n\n" % msgspec.json.encode({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    out = Guarded(asked(), guards(CARD)).fed(role() + stream + end() + DONE)
    assert NUMBER.encode() not in out


def test_rules_for_answers_do_not_read_arguments_of_tools_and_the_other_way_round() -> None:
    stream = pieces(arguments(0), "kraken") + pieces(CONTENT, NUMBER) + end() + DONE
    made = Guarded(asked(), guards({**STOP, "on": ["output"]}, {**CARD, "on": ["tool_arguments"]}))
    assert streamed(made.fed(stream))[0].texts == {arguments(0): "kraken", CONTENT: NUMBER}


@given(st.integers(1, 9))
def test_values_are_put_back_where_the_engine_wrote_placeholders(size: int) -> None:
    values = Placeholders(random.Random(3))
    mail, quoted = values.label("email", "ann@example.com"), values.label("name", 'Ann "A" Lee')
    args = f'{{"to":"{quoted}"}}'.replace("⟦", "\\u27e6")
    written = ((CONTENT, f"Write to {mail} and ⟦PII:EMAIL:9-zzzzzzzz⟧ or {mail[:9]}"), (arguments(0), args))
    stream = b"".join([pieces(path, *[said[at : at + size] for at in range(0, len(said), size)]) for path, said in written])
    made = Guarded(asked(), None, values)
    seen = streamed(made.fed(role() + stream + end() + DONE))[0]
    assert seen.texts[CONTENT] == f"Write to ann@example.com and ⟦PII:EMAIL:9-zzzzzzzz⟧ or {mail[:9]}"
    assert msgspec.json.decode(seen.texts[arguments(0)]) == {"to": 'Ann "A" Lee'}
    assert not made.story.attempt.held


def test_rules_see_placeholders_and_not_the_values_of_the_caller() -> None:
    values = Placeholders(random.Random(3))
    card = values.label("card", NUMBER)
    made = Guarded(asked(), guards(CARD), values)
    assert streamed(made.fed(pieces(CONTENT, f"yours: {card}, mine: {NUMBER}") + end() + DONE))[0].texts == {
        CONTENT: f"yours: {NUMBER}, mine: [PATTERN]"
    }


def test_what_carries_the_text_as_tokens_is_left_out_where_rules_may_change_it() -> None:
    tokens = {"content": [{"token": "kraken", "logprob": -1.0}]}
    part = {
        "index": 0,
        "delta": {"content": "a", "audio": {"id": "x", "data": "UklGRg=="}},
        "logprobs": tokens,
        "token_ids": [7],
        "finish_reason": "stop",
    }
    body = {"id": "c", "object": "chat.completion.chunk", "model": "m", "prompt_token_ids": [5], "choices": [part]}
    stream = b"data: %b\n\n" % msgspec.json.encode(body) + DONE
    assert Guarded(asked(), guards({**STOP, "mode": "flag"})).fed(stream) == stream
    out = next(events_of(Guarded(asked(), guards(STOP)).fed(stream)))
    assert out["choices"] == [{"index": 0, "delta": {"content": "a", "audio": {"id": "x"}}, "finish_reason": "stop"}]
    assert "prompt_token_ids" not in out


def test_texts_that_come_whole_are_judged_by_themselves() -> None:
    def cited(url: str, **more: object) -> bytes:
        note = {"type": "url_citation", "url_citation": {"url": url, "start_index": 3}}
        part = {"index": 0, "delta": {"annotations": [note]}, "finish_reason": None}
        return b"data: %b\n\n" % msgspec.json.encode({"id": "c", "model": "m", "choices": [part], **more})

    made = Guarded(asked(), guards(CARD, STOP))
    out = made.fed(cited("https://a.example/" + NUMBER) + cited("https://b.example/", vendor_note="a " + NUMBER) + end() + DONE)
    seen = list(events_of(out))
    urls = [one["choices"][0]["delta"]["annotations"][0]["url_citation"]["url"] for one in seen[:2]]
    assert urls == ["https://a.example/[PATTERN]", "https://b.example/"]
    assert seen[1]["vendor_note"] == "a [PATTERN]"
    out = Guarded(asked(choices=2), guards(STOP)).fed(cited("https://b.example/", vendor_note="a kraken"))
    assert {index: one.finish for index, one in streamed(out).items()} == {0: "content_filter", 1: "content_filter"}
    assert b"kraken" not in out
    assert out.endswith(DONE)


class Boom:
    """A rule that fails."""

    id, longest = "boom", 4

    def scan(self, text: object) -> list[object]:
        raise RuntimeError


@pytest.mark.parametrize("at_end", [True, False])
def test_a_rule_that_fails_closed_ends_the_answer(at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardrails.build.Words", lambda *_, **__: Boom())
    made = Guarded(asked(), guards(STOP))
    assert made.fed(role() + (end() if at_end else b"") + pieces(CONTENT, "hello") + end() + DONE) == b"" or at_end
    if not at_end:
        assert made.chain.fault is not None
        assert made.chain.fault.kind is Kind.GUARD_UNAVAILABLE
        assert made.story.guarded.ended == "unavailable"
        assert not made.story.attempt.begun


def test_an_answer_of_which_more_is_held_than_may_be_is_refused_by_name() -> None:
    made = Guarded(asked(), guards({"kind": "pattern", "pattern": "x[a-z]{900}y", "mode": "block"}, held_bytes=256))
    assert made.fed(pieces(CONTENT, *["x" + "a" * 99] * 8)) == b""
    assert made.chain.fault is not None
    assert made.chain.fault.kind is Kind.GUARD_LIMIT
    assert "256 bytes (held_bytes)" in made.chain.fault.message


@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":7,"delta":{"content":"x"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":' + b'{"a":' * 40 + b'"x"' + b"}" * 40 + b',"finish_reason":null}]}\n\n',
        b"".join([event(CHAT, 0, arguments(at), "x") for at in range(MAX_CHANNELS + 1)]),
    ],
)
def test_what_rules_cannot_read_does_not_go_on(bad: bytes) -> None:
    made = Guarded(asked(), guards(STOP))
    out = made.fed(bad + end() + DONE)
    assert DONE not in out
    assert made.chain.fault is not None
    assert made.chain.fault.kind is Kind.INVALID_REPLY


def test_nothing_has_begun_for_the_caller_while_everything_is_held() -> None:
    made = Guarded(asked(), guards(STOP))
    attempt = made.story.attempt
    for text in ("", "k", "r", "a"):
        assert made.chain.feed(role() if not text else pieces(CONTENT, text)) == b""
        assert (attempt.begun, attempt.held, attempt.released_at) == (False, True, None)
    assert attempt.events == 4
    out = made.chain.feed(pieces(CONTENT, "ft work. " * 9))
    assert out.startswith(role()), "the role comes in front of the first text"
    assert attempt.begun
    assert attempt.released_at is not None
    assert attempt.first_event_at is not None
    assert attempt.released_at == attempt.last_event_at > attempt.first_event_at


def test_reasoning_and_progress_of_other_engines_pass_in_their_own_forms() -> None:
    """SGLang names every member in each event; llama.cpp tells how far the prompt is."""
    full = {"role": None, "content": None, "reasoning_content": "hm", "tool_calls": None}
    part = {"index": 0, "delta": full, "logprobs": None, "finish_reason": None, "matched_stop": None}
    sglang = msgspec.json.encode(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [part], "usage": None}
    )
    made = Guarded(asked(), guards(STOP))
    out = made.fed(b"".join([b"data: %b\n\n" % sglang] * 90) + end() + DONE)
    assert streamed(out)[0].texts == {REASONING: "hm" * 90}
    said = {"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}
    progress = b"data: %b\n\n" % msgspec.json.encode({"choices": [said], "prompt_progress": {"total": 9}})
    made = Guarded(asked(), guards(STOP))
    assert made.chain.feed(progress) == progress
    assert not made.story.attempt.begun


def test_the_engines_running_usage_is_told_after_a_cut() -> None:
    counts = {"prompt_tokens": 9, "completion_tokens": 30}
    stream = b"".join([event(CHAT, 0, CONTENT, text, usage=counts) for text in ("a kraken", "." * 90, "." * 90)])
    made = Guarded(asked(usage=True), guards(STOP))
    made.fed(stream)
    assert made.story.attempt.cut == Usage(9, 30)


def test_what_an_engine_repeats_as_it_was_is_read_by_its_bytes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Guarded(asked(choices=2), guards(CARD))
    out = made.chain.feed(pieces(CONTENT, "one ") + pieces(CONTENT, "one ", index=1))
    monkeypatch.setattr("gateway.guards.reply_tap._decode", None)
    for word in ("a " * 20, "b ", '"\\u00e9\n', "d"):
        for index in (0, 1):
            out += made.chain.feed(pieces(CONTENT, word, index=index))
    monkeypatch.undo()
    out += made.chain.feed(end() + end(index=1))
    assert [one.texts[CONTENT] for one in streamed(out).values()] == ["one " + "a " * 20 + 'b "\\u00e9\nd'] * 2
