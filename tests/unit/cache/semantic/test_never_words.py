"""Texts that the semantic cache passes by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic import never_words
from cache.semantic.never_words import (
    CODE,
    DEFAULT_PERSONAL,
    DEFAULT_TIME,
    LONG,
    MAX_CHARS,
    MAX_ENTRIES,
    PERSONAL,
    REFUSALS,
    SHORT,
    TIME,
    NeverWords,
    text_refusal,
)

DEFAULT = NeverWords()
NONE = NeverWords((), ())


@pytest.mark.parametrize(
    "text",
    [
        "How do I reset my password?",
        "Password reset steps",
        "How do I open an account?",
        "What is a current account?",
        "What documents do I need for a visa?",
        "How do I change my address?",
        "Who won the world cup in 1998?",
        "What happened on 5 May 2024?",
        "Is a tomato a fruit?",
        "How do I sort a list in Python?",
        "Wie setze ich mein Passwort zurück?",
    ],
)
def test_questions_with_one_answer_for_all_may_be_cached(text: str) -> None:
    assert text_refusal(text, DEFAULT) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("What's the weather in Paris?", TIME),
        ("Who is the president NOW?", TIME),
        ("Is the shop open on Monday?", TIME),
        ("What is the latest version of Python?", TIME),
        ("price of gold", TIME),
        ("Wie wird das Wetter in Berlin", TIME),
        ("Qu'est-ce qui se passe aujourd'hui ?", TIME),
        ("How high is my account balance?", PERSONAL),
        ("my very own savings account balance please", ""),
        ("Where is my order?", PERSONAL),
        ("Why was my card declined?", PERSONAL),
        ("Am I eligible for a loan?", PERSONAL),
        ("restaurants near me please", PERSONAL),
        ("Wo ist meine Karte?", PERSONAL),
        ("What is my balance today?", TIME),
        ("", SHORT),
        ("hello", SHORT),
        ("reset password", SHORT),
        ("reset password!!!", SHORT),
        ("今天天气怎么样", ""),
        ("你好", SHORT),
        ("x " * (MAX_CHARS // 2), ""),
        ("x " * (MAX_CHARS // 2) + "x", LONG),
        ("Please run this Python script and tell me the result", CODE),
        ("execute the following SQL query", CODE),
        ("What does this do?\n```\nprint(1)\n```", CODE),
        ("why does this fail:\ndef f(x):\n  return x", CODE),
        ("How do I run a marathon?", ""),
    ],
)
def test_a_text_is_passed_by_for_a_reason(text: str, reason: str) -> None:
    assert text_refusal(text, DEFAULT) == reason


@given(st.text(max_size=300))
def test_every_text_has_a_verdict(text: str) -> None:
    assert text_refusal(text, DEFAULT) in ("", *REFUSALS)


@given(st.sampled_from(DEFAULT_TIME + DEFAULT_PERSONAL), st.sampled_from(["please say {}", "{} or not", "Oh! {}?", "and {} so"]))
def test_every_entry_of_the_defaults_is_found_anywhere_and_in_any_case(entry: str, around: str) -> None:
    text = around.format(entry.replace("...", "green"))
    assert DEFAULT.found(text) != ""
    assert DEFAULT.found(text.upper()) == DEFAULT.found(text)


@given(st.text(max_size=200))
def test_empty_lists_find_nothing(text: str) -> None:
    assert NONE.found(text) == ""


def test_a_policy_has_its_own_lists() -> None:
    never = NeverWords(time=["opening hours"], personal=["Beleg ... Nummer"])
    assert never.found("What are the Opening-Hours?") == TIME
    assert never.found("beleg nummer") == never.found("Beleg mit der Nummer") == never.found("Beleg a b c Nummer") == PERSONAL
    assert never.found("Beleg a b c d Nummer") == ""
    assert never.found("the weather now, and my balance") == ""


def test_a_phrase_stands_inside_one_sentence_and_in_whole_words() -> None:
    never = NeverWords(time=["my ... balance", "now"], personal=[])
    assert never.found("It is my cat. Balance is hard.") == ""
    assert never.found("my new account balance") == TIME
    assert never.found("I know nowhere snow") == ""


def test_the_reason_is_time_where_both_lists_find_something() -> None:
    never = NeverWords(time=["b"], personal=["a"])
    assert never.found("a b") == never.found("b a") == TIME
    assert never.found("a a") == PERSONAL


@pytest.mark.parametrize("entry", ["", "  ", "...", "my ...", "... balance", "?!", "x" * 201])
def test_an_entry_without_a_word_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="no entry"):
        NeverWords(time=[entry], personal=[])


def test_a_list_has_a_bound() -> None:
    with pytest.raises(ValueError, match="entries"):
        NeverWords(time=[], personal=["word"] * (MAX_ENTRIES + 1))


def test_single_personal_words_are_not_in_the_default() -> None:
    assert not {"my", "account", "i", "me"} & set(never_words.DEFAULT_PERSONAL)
