"""Tokens and stems of questions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.words import IDENTIFIER, NUMBER, SIGN, STOP, WORD, normal, stem, tokens


def folded(text: str, kind: str) -> list[str]:
    return [token.folded for token in tokens(normal(text)) if token.kind == kind]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("How do I reset my password?", "how do i reset my password"),
        ("Why can\u2019t I?", "why can not i"),
        ("I dont know, it won't", "i do not know it will not"),
        ("What's Brian's name", "what is brian name"),
        ("we'll top-up", "we will top up"),
        ("Où est l'hôtel d'Été", "ou est l hotel d ete"),
        ("O'Brien", "obrien"),
        ("Straße", "strasse"),
        ("\uff46\uff55\uff4c\uff4c\u3000width", "full width"),
        ("can\u00adcel or\u200bder", "cancel order"),
    ],
)
def test_words_are_folded_and_taken_apart(text: str, words: str) -> None:
    assert folded(text, WORD) == words.split()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,000 or 1000 or 1000.00", ["1000", "1000", "1000"]),
        ("1.5 or 1,5 or 1.50", ["1.5", "1.5", "1.5"]),
        ("12,345,678", ["12345678"]),
        ("007", ["7"]),
        ("at -5 degrees", ["-5"]),
        ("days 1-2", ["1", "2"]),
        ("2024-05-01 17:30 5/6", ["2024-05-01", "17:30", "5/6"]),
        ("5kg 3rd", ["5", "3"]),
    ],
)
def test_one_number_has_one_form(text: str, numbers: list[str]) -> None:
    assert folded(text, NUMBER) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "snake_case", "__init__", "camelCase", "parseURL", "E404", "sha256", "0xFF", "v2", "v2.10.0", "2.10.0", "10.0.0.1", "c++", "C#",
        "example.com", "torch.utils.data", "call()", "/etc/passwd", "~/notes.txt", "src/main.py", "C:\\Temp\\x", "https://a.b/c?d=1#e",
        "a.b+c@example.org", "CVE-2021-44228", "--verbose", "123e4567-e89b-12d3-a456-426614174000", "a1b2c3",
    ],
)  # fmt: skip
def test_an_identifier_is_one_token(text: str) -> None:
    assert folded(f"what is {text} for?", IDENTIFIER) == [text.casefold()]
    assert folded(f"{text} explained", IDENTIFIER) == [text.casefold()]


def test_plain_words_are_no_identifiers() -> None:
    assert folded("How Do I reset, and/or change my E-mail PIN? (Please!) Thanks. iPads", IDENTIFIER) == ["ipads"]
    assert folded("yes/no and/or", IDENTIFIER) == []


def test_signs_and_ends_of_sentences() -> None:
    assert folded("$5 and 20% of 2 + 2. Why?", SIGN) == ["$", "%", "+"]
    assert folded("One. Two! Three? Four; five: six\nseven", STOP) == [".", "!", "?", ";", ":", "\n"]


@pytest.mark.parametrize(
    "forms",
    [
        "reset resets resetting", "cancel cancels cancelled cancelling canceled", "change changes changed changing", "city cities",
        "carry carries carried", "card cards", "make makes made making", "pay pays paid paying", "address addresses", "send sent sending",
        "lose lost losing", "use uses used using", "quick quickly", "apply applied applies applying", "install installed installing",
    ],
)  # fmt: skip
def test_inflections_have_one_stem(forms: str) -> None:
    assert len({stem(word) for word in forms.split()}) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("news", "new"), ("process", "proces"), ("bus", "bu"), ("king", "k"), ("speed", "spe"), ("sell", "sel"), ("us", "u")]
)
def test_words_that_look_inflected_stay(one: str, other: str) -> None:
    assert stem(one) != stem(other)


@given(st.text())
def test_every_text_has_tokens_in_folded_form(text: str) -> None:
    for token in tokens(normal(text)):
        assert token.kind in (WORD, NUMBER, IDENTIFIER, SIGN, STOP)
        assert token.kind == STOP or token.folded.strip()
