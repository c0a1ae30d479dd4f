"""Words: found whatever their case, width or look-alike letters, whole or not, at the characters of the original."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.rules.words import MAX_WORDS, Words
from guardrails.text import Text


def _found(text: str, *words: str, whole: bool = True) -> list[str]:
    return [text[f.begin : f.end] for f in Words("w", words, whole=whole).scan(Text(text))]


@given(st.text("ab _.", max_size=30), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4, unique=True))
def test_whole_words_are_those_that_an_expression_finds(text: str, words: list[str]) -> None:
    naive = [match.group() for match in re.finditer(r"\w+", text) if match.group() in words]
    assert _found(text, *words) == naive


@given(st.text("abc", max_size=30), st.text("abc", min_size=1, max_size=3))
def test_parts_of_words_are_found_where_asked_for(text: str, word: str) -> None:
    assert bool(_found(text, word, whole=False)) is (word in text)


@pytest.mark.parametrize(
    ("text", "word", "value"),
    [
        ("the Project Falcon is", "project falcon", "Project Falcon"),
        ("f\u0430lcon", "falcon", "f\u0430lcon"),
        ("FAL\u200bCON!", "falcon", "FAL\u200bCON"),
        ("\uff26\uff41\uff4c\uff43\uff4f\uff4e", "falcon", "\uff26\uff41\uff4c\uff43\uff4f\uff4e"),
        ("STRASSE", "stra\u00dfe", "STRASSE"),
        ("\u0412\u041e\u0419\u041d\u0410", "\u0432\u043e\u0439\u043d\u0430", "\u0412\u041e\u0419\u041d\u0410"),
        ("I like C++.", "c++", "C++"),
    ],
)
def test_disguises(text: str, word: str, value: str) -> None:
    assert _found(text, word) == [value]


def test_bounds_of_words() -> None:
    assert _found("falcons falcon_1 xfalcon", "falcon") == []
    assert _found("falcons", "falcon", whole=False) == ["falcon"]
    assert _found("new york city", "new york", "new york city", "york") == ["new york city"]
    assert Words("w", ["abc"]).longest >= 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there are no words"),
        (["a", " "], "nothing to look for"),
        (["\u200b"], "nothing to look for"),
        (["x" * 201], "has 201 characters"),
    ],
)
def test_lists_that_cannot_be(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Words("w", words)


def test_too_many_words() -> None:
    with pytest.raises(ValueError, match="more than 10000 words"):
        Words("w", (f"w{n}" for n in range(MAX_WORDS + 1)))
