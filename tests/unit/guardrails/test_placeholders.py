"""Placeholders: what was masked is restored exactly, however the answer is cut, and nothing else is."""

import itertools
import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.placeholders import TAG_CHARS, Placeholders
from guardrails.ports import Finding
from tests.guard_doubles import chain, rule


def placeholders(seed: int = 1) -> Placeholders:
    return Placeholders(random.Random(seed))


def in_pieces(made: Placeholders, text: str, cuts: list[int], *, in_json: bool = False) -> str:
    restorer = made.restorer(in_json=in_json)
    edges = [0, *sorted(cuts), len(text)]
    return "".join([restorer.feed(text[begin:end]) for begin, end in itertools.pairwise(edges)]) + restorer.end()


def test_a_placeholder_names_kind_number_and_tag_and_is_the_same_for_the_same_value() -> None:
    made = placeholders()
    first = made.label("email", "a@b.c")
    assert re.fullmatch(rf"⟦PII:EMAIL:1-[a-z2-9]{{{TAG_CHARS}}}⟧", first)
    assert made.label("email", "a@b.c") == first
    assert made.label("phone-no", "a@b.c").startswith("⟦PII:PHONE_NO:2-")
    assert len(made) == 2
    assert placeholders(2).label("email", "a@b.c") != first


@given(st.text(max_size=60), st.lists(st.tuples(st.integers(0, 59), st.integers(1, 12), st.sampled_from(["email", "card"])), max_size=6))
def test_what_was_masked_is_restored_and_no_masked_character_is_left(text: str, spans: list[tuple[int, int, str]]) -> None:
    found = [Finding("r", kind, begin, min(begin + length, len(text))) for begin, length, kind in spans if begin < len(text)]
    made = placeholders()
    masked = made.mask(text, found)
    assert made.restored(masked) == text
    kept = "".join([c for at, c in enumerate(text) if not any(one.begin <= at < one.end for one in found)])
    assert re.sub("⟦PII:(EMAIL|CARD):[0-9]+-[a-z2-9]{8}⟧", "", masked) == kept


def test_a_chain_makes_the_labels_of_its_rules() -> None:
    made = placeholders()
    text = "Write to ann@corp and bob@corp."
    masked = chain(rule("redact", "[a-z]+@[a-z]+", None, kind="email", restore=True)).judge(text, made.label).text
    assert masked is not None
    assert "@" not in masked
    assert made.restored(masked) == text


VALUES = ("ann@corp", 'a "quoted" \\ value', "Zoë\n")


def answers(made: Placeholders) -> list[str]:
    first, second, third = (made.label("email", value) for value in VALUES)
    foreign = placeholders(99).label("email", "other")
    return [
        f"To {first}, {second}!{third}",
        f"{first}{first}⟦{second}⟦⟦PII:EMAIL:{third[3:]}",
        f"⟦PII:EMAIL:1⟧ {foreign} {first[:-1]} {first}",
        f"{first.upper()} [{first[1:-1]}] ⟦",
        "\\u27e6" + first[1:-1] + "\\u27e7 \\\\" + second,
    ]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("in_json", [False, True])
def test_an_answer_that_is_cut_at_every_pair_of_places_is_restored_as_the_whole(number: int, in_json: bool) -> None:
    made = placeholders()
    text = answers(made)[number]
    whole = made.restored(text, in_json=in_json)
    for cuts in itertools.combinations(range(len(text) + 1), 2):
        assert in_pieces(made, text, list(cuts), in_json=in_json) == whole
    assert in_pieces(made, text, list(range(len(text))), in_json=in_json) == whole


def test_unknown_and_foreign_placeholders_stay_as_they_are() -> None:
    made = placeholders()
    own = made.label("email", "ann@corp")
    foreign = placeholders(99).label("email", "other")
    kept = f"{foreign} ⟦PII:EMAIL:1⟧ {own.lower()} {own[:-1]} ⟦"
    assert made.restored(kept) == kept
    assert made.restored(f"⟦{own}") == "⟦ann@corp"
    assert placeholders(3).restored(own) == own


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4), st.booleans(), st.booleans(), st.lists(st.integers(0, 200), max_size=8))
def test_values_in_tool_arguments_are_json_again(values: list[str], ascii_only: bool, upper: bool, cuts: list[int]) -> None:
    """An engine that writes arguments with escapes, and one that does not."""
    made = placeholders()
    masked = {f"k\\{at}": f'say "{made.label("name", value)}\\' for at, value in enumerate(values)}
    arguments = json.dumps(masked, ensure_ascii=ascii_only)
    if upper:
        arguments = arguments.replace("\\u27e6", "\\u27E6").replace("\\u27e7", "\\u27E7")
    restored = in_pieces(made, arguments, [min(cut, len(arguments)) for cut in cuts], in_json=True)
    assert json.loads(restored) == {f"k\\{at}": f'say "{value}\\' for at, value in enumerate(values)}


def test_an_escaped_backslash_before_the_letters_of_an_escape_is_no_bracket() -> None:
    made = placeholders()
    core = made.label("email", "ann@corp")[1:-1]
    text = json.dumps("\\u27e6" + core + "\\u27e7")
    assert made.restored(text, in_json=True) == text


def test_nothing_is_held_but_the_beginning_of_a_placeholder() -> None:
    made = placeholders()
    own = made.label("email", "ann@corp")
    restorer = made.restorer()
    assert restorer.feed("plain text") == "plain text"
    assert restorer.feed("a ⟦x") == "a ⟦x"
    assert restorer.feed("b " + own[:9]) == "b "
    assert restorer.feed("nothing of ours") == own[:9] + "nothing of ours"
    assert restorer.feed(own) == "ann@corp"
    assert placeholders().restorer().feed("⟦") == "⟦"


@pytest.mark.req("R37")
def test_no_value_is_shown_by_the_form_of_the_map() -> None:
    made = placeholders()
    made.label("email", "ann@corp")
    assert repr(made) == "Placeholders(1 values)"
