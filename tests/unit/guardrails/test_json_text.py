"""Characters in place of the escapes of JSON: the same JSON, and the same text however it was cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.json_text import Unescaper, unescaped

ESCAPES = st.text(alphabet='\\u/"dD8cafE0 \n9b1é', max_size=40)


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (r"M\u00fcller", "Müller"),
        (r"M\u00FCller", "Müller"),
        (r"ann\u0040corp.io", "ann@corp.io"),
        (r"\ud83d\ude00", "😀"),
        (r"https:\/\/example.com", "https://example.com"),
        (r"\\u0041", r"\\u0041"),
        (r"\\\u0041", r"\\A"),
        (r"\u0022\u005c\u000a\n\"", r"\u0022\u005c\u000a\n\""),
        (r"\ud83d \ude00\ud83d", r"\ud83d \ude00\ud83d"),
        (r"\u00g1\u", r"\u00g1\u"),
        (r"\U0041", r"\U0041"),
    ],
)
def test_what_needs_no_escape_is_its_character(written: str, seen: str) -> None:
    assert unescaped(written) == seen
    for at in range(len(written)):
        pieces = Unescaper()
        assert pieces.feed(written[:at]) + pieces.feed(written[at:]) + pieces.end() == seen


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)))
def test_it_is_the_same_json(value: object) -> None:
    written = json.dumps(value)
    assert json.loads(unescaped(written)) == value
    assert unescaped(unescaped(written)) == unescaped(written)


@given(ESCAPES, st.lists(st.integers(0, 40), max_size=6))
def test_what_comes_out_does_not_depend_on_the_pieces(text: str, cuts: list[int]) -> None:
    pieces = Unescaper()
    out = ""
    edges = sorted({0, len(text), *[cut for cut in cuts if cut < len(text)]})
    for begin, end in pairwise(edges):
        out += pieces.feed(text[begin:end])
    assert out + pieces.end() == unescaped(text)


def test_nothing_is_held_but_an_unfinished_escape() -> None:
    pieces = Unescaper()
    assert [pieces.feed(piece) for piece in ('{"a": "', "\\", "u00e", "9!", "\\ud83d", "\\ude0", "0")] == [
        '{"a": "',
        "",
        "",
        "é!",
        "",
        "",
        "😀",
    ]
