"""Which requests ask a question, and what stands before it."""

import json
from typing import Any

import pytest

from cache.semantic.conversation import REFUSALS, Asked, conversation_of
from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret

QUESTION = {"role": "user", "content": "How do I reset my password?"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def ask(endpoint: Endpoint = Endpoint.CHAT, **members: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **members}).encode())


def asked(*messages: dict[str, Any], **members: Any) -> Asked | str:
    return conversation_of(ask(messages=list(messages), **members))


def test_the_question_is_the_text_of_the_last_turn() -> None:
    plain = asked(QUESTION)
    parts = asked({"role": "user", "content": [{"type": "text", "text": "How do I reset"}, {"type": "text", "text": "my password?"}]})
    assert isinstance(plain, Asked)
    assert isinstance(parts, Asked)
    assert (plain.text, parts.text) == ("How do I reset my password?", "How do I reset\nmy password?")


@pytest.mark.parametrize(
    "earlier",
    [
        [{"role": "system", "content": "Be brief."}],
        [{"role": "system", "content": "Be long."}],
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        [{"role": "user", "content": "Hello"}],
    ],
)
def test_everything_before_the_question_has_to_be_equal(earlier: list[dict[str, Any]]) -> None:
    alone, behind, again = asked(QUESTION), asked(*earlier, QUESTION), asked(*earlier, {"role": "user", "content": "Another one?"})
    assert isinstance(alone, Asked)
    assert isinstance(behind, Asked)
    assert isinstance(again, Asked)
    assert behind.before == again.before != alone.before


def test_who_asks_in_the_last_turn_has_to_be_equal() -> None:
    ann, bob = asked({**QUESTION, "name": "ann"}), asked({**QUESTION, "name": "bob"})
    assert isinstance(ann, Asked)
    assert isinstance(bob, Asked)
    assert ann.before != bob.before


@pytest.mark.parametrize(
    ("request_of", "refusal"),
    [
        (ask(Endpoint.COMPLETIONS, prompt="How do I reset my password?"), "endpoint"),
        (ask(messages=[QUESTION], tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
        (
            ask(messages=[{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "x"}, QUESTION]),
            "tools",
        ),
        (
            ask(messages=[QUESTION, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "x"}]),
            "tools",
        ),
        (ask(messages=[QUESTION], response_format={"type": "json_object"}), "schema"),
        (ask(messages=[QUESTION], structured_outputs={"choice": ["a", "b"]}), "schema"),
        (ask(messages=[QUESTION, {"role": "assistant", "content": "You"}]), "turn"),
        (ask(messages=[{"role": "system", "content": "Say hello"}]), "turn"),
    ],
)
def test_requests_whose_answers_fit_no_other_question_are_refused_by_name(request_of: Ask, refusal: str) -> None:
    assert conversation_of(request_of) == refusal
    assert refusal in REFUSALS


def test_a_response_format_of_text_asks_for_no_form() -> None:
    assert isinstance(asked(QUESTION, response_format={"type": "text"}), Asked)
