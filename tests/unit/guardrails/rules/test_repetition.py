"""Repetition: a row of the same unit is found where it becomes too long, as a slow comparison finds it, and streams are cut there."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.chain import Chain, ChainRule
from guardrails.rules.repetition import Repetition
from guardrails.text import Text
from guardrails.window import GuardWindow
from tests.guard_doubles import assert_streams_alike


def _slow(text: str, times: int, most: int, least: int) -> list[tuple[int, int]]:
    """Every row of every unit, by comparing all characters."""
    found = []
    for unit in range(1, most + 1):
        at = 0
        while at + unit < len(text):
            begin = at
            while at + unit < len(text) and text[at] == text[at + unit]:
                at += 1
            row = text[begin : at + unit]
            is_shortest = not any(row[shorter:] == row[: len(row) - shorter] for shorter in range(1, unit))
            cut = begin + max(times * unit, least)
            if at > begin and is_shortest and cut + unit <= at + unit:
                found.append((cut, cut + unit))
            at = max(at, begin + 1)
    return sorted(found)


rows = st.lists(st.tuples(st.text("abc", min_size=1, max_size=9), st.integers(1, 14)), min_size=1, max_size=4)


@given(rows, st.integers(5, 7), st.integers(1, 8), st.integers(8, 30))
def test_a_row_is_found_where_a_slow_comparison_finds_it(parts: list[tuple[str, int]], times: int, most: int, least: int) -> None:
    text = "".join(unit * count for unit, count in parts)
    rule = Repetition("r", max_times=times, max_unit_chars=most, min_chars=least)
    assert [(found.begin, found.end) for found in rule.scan(Text(text))] == _slow(text, times, most, least)


@given(rows, st.integers(1, 5))
def test_a_stream_is_cut_where_the_text_is(parts: list[tuple[str, int]], size: int) -> None:
    text = "".join(unit * count for unit, count in parts)
    rules = Chain([ChainRule(Repetition("r", max_times=5, max_unit_chars=9, min_chars=12), "block")], Text)
    assert_streams_alike(rules, text, [list(range(size, len(text), size))])


def test_the_first_unit_behind_those_allowed_is_the_finding() -> None:
    line = "I am sorry, I do not know. "
    (found,) = Repetition("r").scan(Text("Well:\n" + line * 30))
    assert (found.kind, found.begin, found.end) == ("repetition", 6 + 20 * len(line), 6 + 21 * len(line))
    rules = Chain([ChainRule(Repetition("r", max_times=5, min_chars=8), "block")], Text)
    verdict = assert_streams_alike(rules, "Well:\n" + line * 7 + "Yes.")
    assert (verdict.by, verdict.text) == ("r", "Well:\n" + line * 5)


@pytest.mark.parametrize(
    "text",
    [
        "I am sorry, I do not know. " * 20,
        "-" * 150 + "\n" + "=" * 150,
        "".join(f"- item {number}\n" for number in range(300)),
        "".join(f"for (int i{number} = 0; i{number} < n; i{number}++) {{ sum += a[i{number}]; }}\n" for number in range(60)),
        "\n".join("| " + " | ".join(str(row * column) for column in range(1, 12)) + " |" for row in range(1, 40)),
    ],
)
def test_what_honest_texts_repeat_is_none(text: str) -> None:
    assert Repetition("r").scan(Text(text)) == []


@pytest.mark.parametrize("swap", [("e", "\u0435"), ("e", "E"), ("e", "e\u200b"), ("e", "\u200de\u00ad")])
def test_look_alikes_and_characters_without_width_make_no_difference(swap: tuple[str, str]) -> None:
    half = "The same sentence over and over again. "
    text = (half + half.replace(*swap)) * 12
    assert len(Repetition("r").scan(Text(text))) == 1


def test_a_stream_of_plain_text_is_held_back_by_one_character() -> None:
    window = GuardWindow(Chain([ChainRule(Repetition("r"), "block")], Text))
    for piece in ("The gate opens ", "at nine, and the ", "harbour master notes each ship."):
        window.feed(piece)
        assert window.held == 1


def test_the_time_is_linear_in_the_text_whatever_it_repeats() -> None:
    rule = Repetition("r")
    for unit in ("a", "ab", "abc" * 40 + "d", "a" * 150 + "b", "x" * 199 + "y"):
        begun = time.process_time()
        rule.scan(Text((unit * 100_000)[:100_000]))
        assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"max_times": 4}, "max_times is 4; at least 5"), ({"max_unit_chars": 0}, "are at least 1"), ({"min_chars": 0}, "are at least 1")],
)
def test_arguments_that_cannot_be(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Repetition("r", **arguments)
