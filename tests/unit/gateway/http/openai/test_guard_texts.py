"""Bodies of `/v1/guard` and `/v1/moderations`: what they ask, what is refused, and how verdicts read in both forms."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.faults import Fault, Kind
from gateway.http.openai.guard_texts import (
    MAX_TEXTS,
    OPENAI_CATEGORIES,
    TextsToJudge,
    action_of,
    guard_question,
    moderation_question,
    render_moderations,
    render_verdicts,
)
from guardrails.verdict import MAX_SHOWN, GuardVerdict, Noted

KEY = Noted(4, 24, "keys", "aws_key", "block")
MAIL = Noted(0, 3, "people", "email", "redact")
VIOLENT = Noted(0, 3, "shield", "violence", "flag")
TRIAL = Noted(0, 3, "new", "word", "shadow")


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def asked(question: TextsToJudge) -> list[tuple[str, str, str]]:
    return [(text.path, text.direction, text.text) for text in question.texts]


def test_a_text_and_a_list_of_texts() -> None:
    assert asked(guard_question(body(input="a"))) == [("input", "input", "a")]
    question = guard_question(body(input=["a", "b"], direction="output", model="sim", guardrails=["extra"]))
    assert asked(question) == [("input[0]", "output", "a"), ("input[1]", "output", "b")]
    assert (question.model, question.guards) == ("sim", ("extra",))


def test_the_texts_of_a_request_have_directions_of_their_own() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ]
    question = guard_question(body(input={"model": "sim", "messages": messages}))
    found = {path: direction for path, direction, _ in asked(question)}
    assert found["input.messages[0].content[0].text"] == "input"
    assert found["input.messages[1].tool_calls[0].function.arguments"] == "tool_arguments"
    assert found["input.messages[2].content"] == "tool_results"
    assert (question.model, question.unread) == ("sim", ("input.messages[0].content[1]",))
    assert guard_question(body(input={"model": "sim", "prompt": "a"}, model="big")).model == "big"


REFUSED: list[tuple[dict[str, Any], Kind, str]] = [
    ({}, Kind.MISSING_PARAMETER, "input"),
    ({"input": None}, Kind.MISSING_PARAMETER, "input"),
    ({"input": 7}, Kind.INVALID_VALUE, "input"),
    ({"input": []}, Kind.INVALID_VALUE, "input"),
    ({"input": ["a", 7]}, Kind.INVALID_VALUE, "input[1]"),
    ({"input": ["a"] * (MAX_TEXTS + 1)}, Kind.INVALID_VALUE, "input"),
    ({"input": {}}, Kind.INVALID_VALUE, "input"),
    ({"input": {"messages": 7}}, Kind.INVALID_VALUE, "input"),
    ({"input": {"messages": [7]}}, Kind.INVALID_VALUE, "input"),
    ({"input": "a", "direction": "sideways"}, Kind.INVALID_VALUE, "direction"),
    ({"input": "a", "direction": ["input"]}, Kind.INVALID_VALUE, "direction"),
    ({"input": {"prompt": "a"}, "direction": "output"}, Kind.INVALID_VALUE, "direction"),
    ({"input": "a", "model": 7}, Kind.INVALID_VALUE, "model"),
    ({"input": "a", "guardrails": "extra"}, Kind.INVALID_VALUE, "guardrails"),
    ({"input": "a", "text": "b"}, Kind.UNSUPPORTED_PARAMETER, "text"),
]


@pytest.mark.parametrize(("fields", "kind", "param"), REFUSED)
def test_bad_bodies_are_refused_with_the_field(fields: dict[str, Any], kind: Kind, param: str) -> None:
    with pytest.raises(Fault) as refused:
        guard_question(body(**fields))
    assert (refused.value.kind, refused.value.param) == (kind, param)


@pytest.mark.parametrize("raw", [b"", b"[]", b'"a"', b'{"input": "a", "input": "b"}', b"{", b'{"input": "\xff"}'])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    for read in (guard_question, moderation_question):
        with pytest.raises(Fault) as refused:
            read(raw)
        assert refused.value.kind is Kind.INVALID_JSON


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "prompt", "input", "role", "content", "tool_calls", "function", "type", "text", "documents"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(values)
def test_whatever_is_asked_is_read_or_refused(value: Any) -> None:
    for read in (guard_question, moderation_question):
        refused, found = "input", 1
        try:
            question = read(json.dumps({"input": value}).encode())
            found = len(question.texts) + len(question.unread)
        except Fault as fault:
            refused = fault.param or "input"
        assert refused.startswith("input") and found


def test_moderations_take_openais_forms() -> None:
    assert moderation_question(body(input="a")).groups == (1,)
    assert moderation_question(body(input=["a", "b"])).groups == (1, 1)
    parts = moderation_question(body(input=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))
    assert (parts.groups, [text.text for text in parts.texts]) == ((2,), ["a", "b"])
    for model, whose in (("omni-moderation-latest", ""), ("text-moderation-stable", ""), ("sim", "sim")):
        question = moderation_question(body(input="a", model=model))
        assert (question.model, question.shown_model) == (whose, model)
    assert moderation_question(body(input="a")).shown_model == "tidegate-guards"
    for part in ({"type": "image_url", "image_url": {"url": "http://x"}}, 7, {"type": "text"}):
        with pytest.raises(Fault) as refused:
            moderation_question(body(input=[{"type": "text", "text": "a"}, part]))
        assert refused.value.kind is Kind.INVALID_VALUE and (refused.value.param or "").startswith("input[1]")


@pytest.mark.parametrize(
    ("verdict", "action"),
    [
        (GuardVerdict(text="abc"), "pass"),
        (GuardVerdict(findings=(TRIAL,), text="abc"), "pass"),
        (GuardVerdict(findings=(TRIAL, VIOLENT), text="abc"), "flag"),
        (GuardVerdict(findings=(MAIL,), text="[EMAIL]"), "change"),
        (GuardVerdict(findings=(KEY,), ended="block", by="keys", cut=0, text=""), "block"),
        (GuardVerdict(ended="unavailable", by="shield", failed=("shield",), text=""), "block"),
    ],
)
def test_what_becomes_of_a_text(verdict: GuardVerdict, action: str) -> None:
    assert action_of("abc", verdict) == action


def test_verdicts_in_our_own_form() -> None:
    question = guard_question(body(input=["abc", "is AKIA"], model="sim"))
    verdicts = [GuardVerdict(findings=(MAIL,), text="[EMAIL]"), GuardVerdict(findings=(KEY,), ended="block", by="keys", cut=3, text="is ")]
    shown = json.loads(render_verdicts(question, verdicts, "0123", "req-1"))
    assert (shown["id"], shown["model"], shown["version"], shown["action"]) == ("req-1", "sim", "0123", "block")
    first, second = shown["results"]
    assert first == {
        "path": "input[0]",
        "direction": "input",
        "action": "change",
        "text": "[EMAIL]",
        "by": None,
        "failed": [],
        "count": 1,
        "findings": [{"rule": "people", "kind": "email", "mode": "redact", "begin": 0, "end": 3}],
    }
    assert (second["action"], second["text"], second["by"]) == ("block", None, "keys"), "nothing of a blocked text goes on"


def test_findings_are_bounded_and_counted() -> None:
    many = tuple(Noted(at, at + 1, "people", "email", "flag") for at in range(3 * MAX_SHOWN))
    (shown,) = json.loads(render_verdicts(guard_question(body(input="a")), [GuardVerdict(findings=many, text="a")], "", "r"))["results"]
    assert (shown["count"], len(shown["findings"])) == (3 * MAX_SHOWN, MAX_SHOWN)


def test_moderations_have_every_category_of_openai_and_the_kinds_that_were_found() -> None:
    question = moderation_question(body(input=["a", "b", "c"]))
    verdicts = [
        GuardVerdict(text="a", findings=(TRIAL,)),
        GuardVerdict(text="b", findings=(VIOLENT, MAIL)),
        GuardVerdict(ended="block", by="keys", cut=0, findings=(KEY,)),
    ]
    shown = json.loads(render_moderations(question, verdicts, "req-1"))
    assert (shown["id"], shown["model"]) == ("modr-req-1", "tidegate-guards")
    clean, violent, secret = shown["results"]
    assert (clean["flagged"], clean["categories"]) == (False, dict.fromkeys(OPENAI_CATEGORIES, False)), "a rule on trial flags nothing"
    assert violent["flagged"] and {name for name, found in violent["categories"].items() if found} == {"violence", "email"}
    assert (violent["category_scores"]["violence"], violent["category_scores"]["hate"]) == (1.0, 0.0)
    assert secret["flagged"] and secret["categories"]["aws_key"] is True
    for result in shown["results"]:
        assert result["categories"].keys() == result["category_scores"].keys() == result["category_applied_input_types"].keys()
