"""R28: expressions that ruin backtracking engines are either refused where they are written, or cost time in proportion to the text."""

import time

import pytest

from guardrails.rules.pattern import Pattern
from guardrails.text import Text

CHARS = 100_000
MOST_S = 0.005
PLAIN = Pattern("plain", "(?i)z[xy]{1,3}w")
ATOMS = {"a": "a", r"\d": "1", r"\w": "x", "[a-z]": "q", "é": "é"}
SHAPES = (
    "(A+)+$", "(A*)*!", "(A|A)+$", "(A|AA)+$", "(A|A?)+$", "(AA?)+!", "(A+A+)+!", "((A+)+)+!", "(A{1,9})+!", "(.*A){10}!",
    "(A+.*)+!", "A*A*A*A*A*!", "(?:A+)*[^A]!", r"(A+\s?)*!", "(A|.)*!", "(A?){25}A{25}!", "(?i)(A+)+!", "(A+?)+?!", "(A+,?)+;", "^(A+)+!$",
)  # fmt: skip
"""Shapes that are published as vulnerable: nested repetitions, alternatives that overlap, and repetitions side by side."""
CASES = [(shape.replace("[^A]", "[^x]").replace("A", f"(?:{atom})"), text) for shape in SHAPES for atom, text in ATOMS.items()]


def seconds(rule: Pattern, text: str) -> float:
    """Processor time of a scan, the best of three: the first one makes the automaton."""
    times = []
    for _ in range(3):
        begun = time.thread_time()
        rule.scan(Text(text))
        times.append(time.thread_time() - begun)
    return min(times)


@pytest.mark.req("R28")
@pytest.mark.parametrize(
    "pattern",
    ["a(.*z)?", "a(?:a{1,999}z)?", "a(?:[^z]*z)?", r"\w{1,500}z|a", "x{1,900}y|x", "(?:ab)(?:.*c)?", "(?i)k(?:.{0,300}!)?", r"\d(?:\d*;)?"],
)
def test_an_expression_that_looks_far_behind_each_short_match_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="may be short or go on for long"):
        Pattern("p", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"EMP-\d+", r"\d+", r"https?://\S+", r"(?i)\bproject[ -]?(?:kestrel|heron)\b", r'"[^"]{1,200}"', "<!--.{0,300}-->",
        r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,63}){1,4}", "-----BEGIN [A-Z ]{1,40}-----[^-]{1,400}-----END", r"(?:\d[ -]?){13,19}",
        "a{1,20}(?:.{0,40}z)?", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}\b", r"(?s)begin.*end", "foo|bar|.{200}",
    ],
)  # fmt: skip
def test_usual_expressions_are_taken(pattern: str) -> None:
    Pattern("p", pattern)


@pytest.mark.req("R28")
def test_a_hundred_expressions_that_ruin_backtracking_take_no_longer_than_their_text_or_are_refused() -> None:
    assert len(CASES) == 100
    slow, refused = {}, {}
    for pattern, char in CASES:
        try:
            rule = Pattern("p", pattern)
        except ValueError as error:
            refused[pattern] = str(error)
            continue
        for text in (char * CHARS, char * (CHARS - 1) + "~"):
            # on a slow machine the text itself takes longer; what backtracks takes a million times as long
            if (taken := seconds(rule, text)) > MOST_S and taken > 50 * seconds(PLAIN, text):
                slow[pattern, text[-1]] = taken
    assert not slow
    assert len(refused) <= 10, "what RE2 takes is not refused for its shape"
