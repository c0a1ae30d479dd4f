"""Rules over calls of tools, and over the JSON that was asked for, in answers: streamed and plain ones have the same verdict."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Endpoint
from domain.faults import Kind
from gateway.guards.reply_parts import OwnIndex
from tests.guarded_replies import DONE, REASONING, Guarded, arguments, asked, event, guards, role

CHAT = Endpoint.CHAT
ALLOW = {"kind": "tools", "mode": "block", "allow": ["find", "look_*"], "on": ["tool_arguments"]}
SHAPE = {"kind": "tools", "mode": "block", "arguments": {"find": {"required": ["q"]}}, "on": ["tool_arguments"]}


def name(call: int, tool: str) -> bytes:
    return event(CHAT, 0, ("delta", "tool_calls", OwnIndex(call), "function", "name"), tool)


def said(*parts: bytes) -> bytes:
    return role() + b"".join(parts) + event(CHAT, 0, finish="tool_calls") + DONE


def passing(*pieces: str, call: int = 0) -> bytes:
    return b"".join([event(CHAT, 0, arguments(call), piece) for piece in pieces])


def shown(made: Guarded) -> dict[int, tuple[str, str]]:
    """Name and arguments of each call that a caller gets, by its index."""
    got: dict[int, tuple[str, str]] = {}
    for payload in made.out.split(b"\n\n"):
        if payload.startswith(b"data: {"):
            for part in msgspec.json.decode(payload[6:])["choices"]:
                for call in part["delta"].get("tool_calls") or []:
                    function = call.get("function") or {}
                    before = got.get(call["index"], ("", ""))
                    got[call["index"]] = (before[0] + (function.get("name") or ""), before[1] + (function.get("arguments") or ""))
    return got


def finish(made: Guarded) -> list[str]:
    events = [msgspec.json.decode(one[6:]) for one in made.out.split(b"\n\n") if one.startswith(b"data: {")]
    return [part["finish_reason"] for one in events for part in one["choices"] if part["finish_reason"]]


def test_a_call_that_is_not_allowed_is_cut_at_its_name_and_the_engine_is_stopped() -> None:
    made = Guarded(asked(), guards(ALLOW))
    made.fed(said(name(0, "find"), passing("{}"), name(1, "drop_table"), passing("{}", call=1)))
    assert shown(made) == {0: ("find", "{}")}
    assert finish(made) == ["content_filter"]
    assert made.out.endswith(DONE)
    assert made.story.attempt.cut is not None
    assert (made.story.guarded.by, made.story.guarded.counts) == ("r0", {("r0", "tool_not_allowed", "block", "tool_arguments"): 1})


@given(st.lists(st.integers(0, 12), max_size=4))
def test_arguments_go_on_once_the_whole_call_fits(cuts: list[int]) -> None:
    text = '{"q": "sea"}'
    edges = sorted({0, len(text), *cuts})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    made = Guarded(asked(), guards(SHAPE))
    made.fed(said(name(0, "find"), passing(*pieces), name(1, "other"), passing("no json", call=1)))
    assert shown(made) == {0: ("find", text), 1: ("other", "no json")}, "a tool without a schema is none of the rule's"
    assert finish(made) == ["tool_calls"]


@pytest.mark.parametrize("written", ['{"p": 1}', "no json", ""])
def test_of_arguments_that_do_not_fit_nothing_goes_on(written: str) -> None:
    made = Guarded(asked(), guards(SHAPE))
    made.fed(said(name(0, "find"), passing(*written)))
    assert "".join(text for _, text in shown(made).values()) == ""
    assert finish(made) == ["content_filter"]
    assert made.story.guarded.word == "block"


def test_rules_that_flag_calls_hold_nothing_and_are_noted_once() -> None:
    flags = [{**ALLOW, "mode": "flag"}, {**SHAPE, "mode": "shadow"}]
    stream = said(name(0, "drop"), passing("{", "}"), name(1, "find"), passing("{", "}", call=1))
    made = Guarded(asked(), guards(*flags))
    for one in stream.split(b"\n\n")[:-1]:
        assert made.chain.feed(one + b"\n\n") == one + b"\n\n"
    assert made.story.guarded.counts == {
        ("r0", "tool_not_allowed", "flag", "tool_arguments"): 1,
        ("r1", "arguments_schema", "shadow", "tool_arguments"): 1,
    }


def test_arguments_that_are_too_long_to_be_held_end_the_answer_by_name() -> None:
    made = Guarded(asked(), guards(SHAPE, held_bytes=4096))
    made.fed(said(name(0, "find"), passing("x" * 5000)))
    assert made.chain.fault is not None
    assert made.chain.fault.kind is Kind.GUARD_LIMIT


def plain(*calls: tuple[str, str]) -> bytes:
    made = [{"id": f"c{at}", "type": "function", "function": {"name": tool, "arguments": text}} for at, (tool, text) in enumerate(calls)]
    message = {"role": "assistant", "content": "so", "tool_calls": made}
    return msgspec.json.encode(
        {"object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    )


@pytest.mark.req("R25")
@pytest.mark.parametrize(
    ("calls", "kept", "by"),
    [
        ((("find", '{"q": 1}'), ("look_up", "{}")), 2, ""),
        ((("look_up", "{}"), ("find", "{}"), ("find", '{"q": 1}')), 1, "r1"),
        ((("drop", "{}"), ("find", '{"q": 1}')), 0, "r0"),
    ],
)
def test_a_plain_reply_keeps_the_calls_in_front_of_the_one_that_is_refused(calls: tuple[tuple[str, str], ...], kept: int, by: str) -> None:
    made = Guarded(asked(stream=False), guards(ALLOW, SHAPE))
    reply: dict[str, Any] = msgspec.json.decode(made.fed(plain(*calls)))
    (choice,) = reply["choices"]
    assert len(choice["message"]["tool_calls"]) == kept
    assert (choice["finish_reason"], made.story.guarded.by) == ("content_filter" if by else "tool_calls", by)
    streamed = Guarded(asked(), guards(ALLOW, SHAPE))
    streamed.fed(said(*[name(at, tool) + passing(text, call=at) for at, (tool, text) in enumerate(calls)]))
    assert (streamed.story.guarded.ended, streamed.story.guarded.by) == (made.story.guarded.ended, by)


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_model_thinks_is_not_the_json_that_was_asked_for(stream: bool) -> None:
    rule = {"kind": "json_schema", "mode": "block", "schema": {"type": "object"}, "on": ["output"]}
    made = Guarded(asked(stream=stream), guards(rule))
    if stream:
        thought = event(CHAT, 0, REASONING, "first I think")
        made.fed(role() + thought + event(CHAT, 0, ("delta", "content"), '{"a": 1}') + event(CHAT, 0, finish="stop") + DONE)
    else:
        message = {"role": "assistant", "reasoning_content": "first I think", "content": '{"a": 1}'}
        made.fed(msgspec.json.encode({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
    assert b"first I think" in made.out
    assert b'\\"a\\"' in made.out
    assert made.story.guarded.word == "passed"


NAME = {"kind": "words", "words": ["müller"], "on": ["tool_arguments"]}
WRITTEN = r'{"to": "M\u00fc\u006Cler", "by": "\ud83d\ude00 \u0022\\\\u006c\""}'


@pytest.mark.parametrize("size", [1, 3, 100])
def test_what_a_model_escapes_in_arguments_is_found(size: int) -> None:
    stream = said(name(0, "pay"), passing(*[WRITTEN[at : at + size] for at in range(0, len(WRITTEN), size)]))
    made = Guarded(asked(), guards({**NAME, "mode": "redact"}))
    made.fed(stream)
    tool, given = shown(made)[0]
    assert (tool, msgspec.json.decode(given)) == ("pay", msgspec.json.decode(WRITTEN) | {"to": "[WORD]"})
    whole = Guarded(asked(stream=False), guards({**NAME, "mode": "redact"}))
    function = {"name": "pay", "arguments": WRITTEN}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    plain = msgspec.json.encode({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage})
    whole.fed(plain)
    told = msgspec.json.decode(whole.out)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert told == given
    flagged = Guarded(asked(), guards({**NAME, "mode": "flag"}))
    flagged.fed(stream)
    assert shown(flagged)[0] == ("pay", WRITTEN), "a rule that only notes changes no byte"
    assert flagged.story.guarded.counts == {("r0", "word", "flag", "tool_arguments"): 1}
