"""Sampled chains: what two prompts share can be read from them to an eighth, and nothing else can."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.prefix.chain import LazyChain, of_text, root
from routing.prefix.sampled import MAX_MARKS, PLACES, marks_of, sampled

SECRET = b"0123456789abcdef"
START = root("r1", "", "acme", SECRET)


def test_places_are_dense_at_first_and_an_eighth_apart_later() -> None:
    assert PLACES[:16] == tuple(range(1, 17))
    assert len(PLACES) == MAX_MARKS
    assert all(0 < after - before <= max(1, before // 8) for before, after in pairwise(PLACES))
    assert PLACES[-1] * 64 > 200_000, "tokens of the longest contexts"


@given(st.integers(0, 900), st.integers(0, 900), st.integers(0, 900))
def test_the_common_beginning_is_found_to_an_eighth(shared: int, one: int, other: int) -> None:
    first = of_text(START, b"s" * shared + b"a" * one, 1)
    second = of_text(START, b"s" * shared + b"b" * other, 1)
    same = [a == b for a, b in zip(marks_of(sampled(first)), marks_of(sampled(second)), strict=False)]
    places = same.index(False) if False in same else len(same)
    assert all(same[:places])
    found = PLACES[places - 1] if places else 0
    reach = min(shared, len(first), len(second))
    assert found <= reach
    assert found == max((place for place in PLACES if place <= reach), default=0)


@given(st.integers(0, 6000))
def test_a_lazy_chain_gives_the_same_and_the_line_is_bounded(blocks: int) -> None:
    text = b"x" * blocks
    told = sampled(LazyChain(START, text, 1))
    assert told == sampled(of_text(START, text, 1))
    assert len(told) <= 344


def test_tenants_have_no_hash_in_common() -> None:
    other = root("r1", "", "globex", SECRET)
    text = b"y" * 2_000
    assert not set(marks_of(sampled(of_text(START, text, 1)))) & set(marks_of(sampled(of_text(other, text, 1))))


def test_a_text_that_was_cut_gives_the_whole_hashes() -> None:
    told = sampled(of_text(START, b"z" * 30, 1))
    assert marks_of(told[:-5]) == marks_of(told)[: len(marks_of(told[:-5]))]
    assert marks_of("") == []


@pytest.mark.parametrize("text", ["!!!!", "AA=A", "A" * 4 * 200])
def test_what_is_no_chain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the chain"):
        marks_of(text)
