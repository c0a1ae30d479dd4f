"""Tenants' expressions: what bounds a match is computed from the structure, what has no bound is refused with its place."""

import pytest
import re2
from hypothesis import assume, given
from hypothesis import strategies as st

from guardrails.rules.pattern import Pattern, width
from guardrails.text import Text

ATOMS = st.sampled_from(["a", "b", "[ab]", r"\w", ".", r"\pL", r"\x61", "[^]a]", r"\b", r"\Qa.\E", "[[:alpha:]]", r"\141"])
TREES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map(lambda p: f"({p})"),
        inner.map(lambda p: f"(?i:{p})"),
        inner.map(lambda p: f"(?P<n>{p})" if "?P<" not in p else p),
        st.tuples(inner, st.sampled_from(["?", "{2}", "{0,3}", "{1,2}?", "*", "+"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=8,
)


@given(TREES, st.text("abA .", max_size=12))
def test_no_match_is_longer_or_shorter_than_the_width_says(pattern: str, text: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error:
        assume(False)
    found = width(pattern)
    for match in compiled.finditer(text):
        length = match.end() - match.start()
        assert length >= found.least
        assert found.most is None or length <= found.most


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        (r"\d{3}-\d{4}", 8, 8),
        ("foo(bar|ba{2,5}z)?", 3, 10),
        (r"(?i)\bkey\b", 3, 3),
        ("(?P<n>x{1,3}){4}", 4, 12),
        (r"[]a]{2}[^]]", 3, 3),
        (r"\Qa+b\E", 3, 3),
        ("a|bcd|", 0, 3),
    ],
)
def test_widths(pattern: str, least: int, most: int) -> None:
    found = width(pattern)
    assert (found.least, found.most) == (least, most)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("ab+c", r"at character 3 of the pattern \('\+c'…\) has no upper bound, and a stream needs a bound: write \{1,20\}"),
        ("x(y|z{2,})", "at character 6"),
        ("^abc", "at character 1 .* depends on where the text begins or ends"),
        (r"abc\z", "at character 4"),
        ("(?:a{1,50}){1,20}(?:b{1,50}){1,20}(?:c{1,50}){1,20}(?:d{1,50}){1,20}(?:e{1,50}){1,20}", "up to 5000 characters|too large"),
    ],
)
def test_streams_need_a_bound(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pattern("p", pattern, bounded=True)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a|b", "missing \\).*at character 1"),
        ("(?=x)y", "no look-ahead"),
        (r"(a)\1", "at character 4.*back-references"),
        ("x*", "matches the empty text"),
        ("a{1,999}b{1,999}c{1,999}d{1,999}e{1,999}", "too large"),
        ("x" * 1001, "1001 characters; at most 1000"),
        ("a\ud800", "half a character .* at character 2"),
    ],
)
def test_what_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pattern("p", pattern)


def test_findings_are_in_characters() -> None:
    text = "é\ud800 EMP-12345 ü emp-99999"
    assert [text[f.begin : f.end] for f in Pattern("p", r"EMP-\d{5}").scan(Text(text))] == ["EMP-12345"]
    assert [text[f.begin : f.end] for f in Pattern("p", r"EMP-\d{5}", ignore_case=True).scan(Text(text))] == ["EMP-12345", "emp-99999"]
    assert [text[f.begin : f.end] for f in Pattern("p", "[äöü]").scan(Text(text))] == ["ü"]
    assert Pattern("p", r"EMP-\d{5}").longest == 11
    assert Pattern("p", "a+").longest is None


def test_an_expression_that_ruins_backtracking_ends_soon() -> None:
    assert Pattern("p", "(a|a)*(a|a)*(a|a)*b").scan(Text("a" * 20_000)) == []


@pytest.mark.parametrize(
    ("pattern", "text", "open_"),
    [
        ("PROJ-[0-9]{4,6}", "see PROJ-12", "PROJ-12"),
        ("PROJ-[0-9]{4,6}", "see PROJ-1234", "PROJ-1234"),
        ("PROJ-[0-9]{4,6}", "see PROJ-123456", "PROJ-123456"),
        ("PROJ-[0-9]{4,6}", "see PROJ-1234 and", ""),
        (r"\b(?i:emp)(?:loyee)? ?id: ?\d{1,3}\b", "an EMP id: 1", "EMP id: 1"),
        ("(?P<vowel>é|ü){2}z?", "hi éü", "éü"),
        ("foo|ba{1,3}r", "a fo baa", "baa"),
        ("(?:ab){2,3}c", "x abab", "abab"),
        (r"[[:alpha:]]{3}\.x", "zz abc.", "abc."),
    ],
)
def test_where_a_match_may_be_open(pattern: str, text: str, open_: str) -> None:
    rule = Pattern("p", pattern, bounded=True)
    assert text[rule.opens_at(Text(text)) :] == open_


@pytest.mark.parametrize("pattern", ["a+", r"\Qa.b\E", "^a", "(?:" * 40 + "a" + ")" * 40])
def test_where_that_is_not_told_the_window_decides(pattern: str) -> None:
    assert Pattern("p", pattern).opens_at(Text("some text a")) in (0, 10)


def test_groups_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(ValueError, match="nests its groups too deeply"):
        Pattern("p", "(?:" * 240 + "a" + ")" * 240)
