"""Texts of requests are redacted by every rule that finds a part of them, and withheld where that cannot be."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.request_log.reader import PromptedMessage, PromptedRequest
from gateway.request_log.redaction import MARGIN_CHARS, WITHHELD, Redactor, answer_text, prompt_text
from guardrails.guard_set import GuardSet
from guardrails.policy import GuardRule
from policies.prompts.prompt import RegisteredPrompt, prompt_of
from policies.prompts.schema import PromptDocument

SECRET = "sk-proj-" + "aB3dE5gH7jK9mN1pQ2rS4tU6" + "T3BlbkFJ" + "vW8xY0zA1bC3dE5fG7hI9jK2"
RULES: TypeAdapter[list[GuardRule]] = TypeAdapter(list[GuardRule])


def guards(*rules: dict[str, Any]) -> GuardSet:
    return GuardSet(RULES.validate_python(list(rules)), 4096)


def body(*messages: tuple[str, str]) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": role, "content": text} for role, text in messages]}).encode()


def stream(*pieces: str) -> bytes:
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def test_the_texts_of_each_form() -> None:
    assert prompt_text(body(("system", "be kind"), ("user", "hi"))) == "system: be kind\nuser: hi"
    assert prompt_text(b'{"model":"m","prompt":"once"}') == "prompt: once"
    assert answer_text(stream("he", "llo")) == "hello"
    assert answer_text(b'{"choices":[{"index":1,"message":{"content":"b"}},{"index":0,"message":{"content":"a"}}]}') == "a\nb"
    assert answer_text(b'{"choices":[{"text":"a"}]}') == "a"
    assert answer_text(stream("he", "llo")[:-40]) == "he", "what was cut inside an event has no text"
    assert answer_text(b"") == ""


@pytest.mark.req("R37")
def test_secrets_and_personal_data_are_redacted_whatever_the_policy_says() -> None:
    kept = Redactor().content(
        body(("user", f"I am ann@acme.example, {SECRET}")), (stream("it is ", SECRET[:9], SECRET[9:]), False), None, 999
    )
    assert SECRET not in kept.prompt + kept.answer
    assert "ann@" not in kept.prompt
    assert kept.prompt.startswith("user: I am [EMAIL], [")
    assert "email" in kept.redacted


def test_a_rule_redacts_whatever_its_mode_and_direction() -> None:
    rules = guards(
        {"id": "a", "kind": "words", "words": ["falcon"], "mode": "flag", "on": ["input"]},
        {"id": "b", "kind": "words", "words": ["eagle"], "mode": "shadow", "on": ["documents"], "topic": "bird"},
        {"id": "c", "kind": "pattern", "pattern": "crow+", "mode": "flag", "on": ["input"]},
        {"id": "d", "kind": "words", "words": ["owl"], "mode": "replace", "replacement": "", "on": ["output"]},
        {"id": "e", "kind": "language", "allow": ["en"], "mode": "flag"},
    )
    kept = Redactor().content(body(("user", "falcon eagle")), (stream("crowww owl finch"), False), rules, 999)
    assert (kept.prompt, kept.answer) == ("user: [WORD] [BIRD]", "[PATTERN] [WORD] finch")


def test_an_answer_that_a_detector_changes_is_withheld() -> None:
    rules = guards({"id": "a", "kind": "detector", "detector": "d", "mode": "redact", "on": ["output"], "on_error": "closed"})
    kept = Redactor().content(body(("user", "hi")), (stream("hello"), False), rules, 999)
    assert (kept.prompt, kept.answer, kept.redacted) == ("user: hi", "", (WITHHELD,))


def test_only_what_is_asked_for_is_kept() -> None:
    assert Redactor().content(None, None, None, 999).prompt == ""
    kept = Redactor().content(None, (stream("a"), False), None, 999)
    assert (kept.prompt, kept.answer) == ("", "a")


@pytest.mark.parametrize("at", range(0, 90, 7))
def test_no_part_of_a_secret_is_left_at_a_cut(at: int) -> None:
    """Wherever the beginning is cut off, and wherever the answer broke off."""
    most = 1000
    filler = "word " * 400
    prompt = f"{filler}{SECRET}{'x ' * ((most - at) // 2)}"
    kept = Redactor().content(body(("user", prompt)), None, None, most)
    assert len(kept.prompt) <= most
    assert kept.prompt_cut
    assert not any(SECRET[n : n + 12] in kept.prompt for n in range(len(SECRET) - 12))
    answer = "so " * (MARGIN_CHARS // 2) + SECRET[:at]
    kept = Redactor().content(None, (stream(answer), True), None, 10**6)
    assert kept.answer_cut
    assert kept.answer
    assert "sk-" not in kept.answer


def test_texts_are_bounded_in_bytes() -> None:
    kept = Redactor().content(body(("user", "ä" * 500)), (stream("ö" * 500), False), None, 301)
    assert (len(kept.prompt.encode()), len(kept.answer.encode()), kept.prompt_cut, kept.answer_cut) == (300, 300, True, True)


def prompt_from(*messages: tuple[str, str], **variables: dict[str, Any]) -> RegisteredPrompt:
    written = {"id": "help", "version": 2, "variables": variables, "messages": [{"role": role, "content": text} for role, text in messages]}
    prompt, mistakes = prompt_of(PromptDocument.model_validate(written))
    assert prompt is not None, mistakes
    return prompt


GREET = prompt_from(("system", "Write to help@acme.example."), ("system", "Be kind to {{ name }}."), name={"type": "string"})


def test_what_a_request_with_a_registered_prompt_said_itself_is_kept_apart_from_the_prompt() -> None:
    sent = body(
        ("system", "Write to help@acme.example."), ("system", "Be kind to Ann."), ("user", "I am ann@acme.example"), ("assistant", "hi")
    )
    kept = Redactor().prompted(sent, GREET, {"name": "Ann"}, None, 999)
    own = (PromptedMessage("user", "I am [EMAIL]"), PromptedMessage("assistant", "hi"))
    assert kept == PromptedRequest("help", 2, {"name": "Ann"}, own)


@pytest.mark.req("R37")
def test_values_for_a_registered_prompt_are_redacted() -> None:
    sent = body(("system", "Write to help@acme.example."), ("system", f"Be kind to {SECRET}."))
    kept = Redactor().prompted(sent, GREET, {"name": f"ann@acme.example {SECRET}"}, None, 999)
    assert kept is not None
    assert SECRET not in str(kept) and "ann@" not in str(kept)


@pytest.mark.req("R37")
@pytest.mark.parametrize(
    ("messages", "name", "rules", "most"),
    [
        ([("user", "x" * 200)], "Ann", None, 100),
        ([("tool", "42")], "Ann", None, 999),
        (
            [],
            "Ann",
            guards({"id": "d", "kind": "detector", "detector": "names", "mode": "redact", "on": ["input"], "on_error": "closed"}),
            999,
        ),
        ([], "falcon two", guards({"id": "p", "kind": "pattern", "pattern": "kind to falcon two", "mode": "flag", "on": ["input"]}), 999),
    ],
    ids=["more than is kept", "a message that cannot be asked again", "a detector finds more", "found in the words of the prompt"],
)
def test_nothing_is_asked_again_that_cannot_be_kept_whole_and_redacted(
    messages: list[tuple[str, str]], name: str, rules: GuardSet | None, most: int
) -> None:
    sent = body(("system", "Write to help@acme.example."), ("system", f"Be kind to {name}."), *messages)
    assert Redactor().prompted(sent, GREET, {"name": name}, rules, most) is None
    assert Redactor().prompted(body(("system", "a"), ("system", "b")), GREET, {"name": "Ann"}, None, 999) is not None


def test_a_number_that_is_personal_is_not_kept_for_a_prompt() -> None:
    card = prompt_from(("system", "The card is {{ card }}."), card={"type": "integer"})
    assert Redactor().prompted(body(("system", "x")), card, {"card": 4111111111111111}, None, 999) is None
    kept = Redactor().prompted(body(("system", "x")), card, {"card": 7}, None, 999)
    assert kept is not None and kept.variables == {"card": 7}
