"""Texts in windows: nothing is left out, and what is found in pieces is found in the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from guardrails.detectors.windows import count_windows, joined, windows
from guardrails.ports import Detected

_SIZES = st.integers(1, 40).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most - 1)))


@given(st.text(max_size=300), _SIZES)
def test_windows_cover_the_text_in_order_and_share_the_overlap(text: str, sizes: tuple[int, int]) -> None:
    most, overlap = sizes
    pieces = windows(text, most, overlap)
    assert all(len(piece) <= most and text[begin : begin + len(piece)] == piece for begin, piece in pieces)
    assert "".join([piece[0 if not number else overlap :] for number, (_, piece) in enumerate(pieces)]) == text
    assert len(pieces) == count_windows(len(text), most, overlap)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.integers(4, 40))
def test_a_word_no_longer_than_the_overlap_is_found_wherever_the_cuts_are(marks: list[bool], most: int) -> None:
    text = "".join(["bad" if mark else "-" for mark in marks])
    parts = []
    for begin, piece in windows(text, most, 3):
        at, found = piece.find("bad"), []
        while at >= 0:
            found.append(Detected("bad", 1.0, at, at + 3))
            at = piece.find("bad", at + 3)
        parts.append((begin, found))
    places = {(at, at + 3) for at in range(len(text)) if text.startswith("bad", at)}
    assert {(one.begin, one.end) for one in joined(parts)} == places


def test_halves_of_one_finding_become_one_with_the_higher_score() -> None:
    parts = [(0, [Detected("PERSON", 0.6, 35, 40)]), (30, [Detected("PERSON", 0.8, 6, 14), Detected("PLACE", 0.5, 6, 14)])]
    assert joined(parts) == (Detected("PERSON", 0.8, 35, 44), Detected("PLACE", 0.5, 36, 44))


def test_what_one_window_says_twice_stays_twice_and_decisions_are_not_mixed_with_scores() -> None:
    twice = [Detected("PERSON", 0.6, 0, 10), Detected("PERSON", 0.7, 2, 8)]
    assert joined([(0, twice), (30, [])]) == tuple(twice)
    mixed = [(0, [Detected("hate", 0.9, 0, 40)]), (30, [Detected("hate", 0.1, 0, 40, False)])]
    assert joined(mixed) == (Detected("hate", 0.9, 0, 40), Detected("hate", 0.1, 30, 70, False))
