"""What is read of a text: tokens where they stand, runs and pieces by their names, windows that overlap by half."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.classifier.features import LETTERS, STRIDE, WINDOW, KnownFeatures, known, names, pieces, places, tokens, windows
from guardrails.text import fold


def test_tokens_are_words_numbers_and_single_characters_with_their_places() -> None:
    text = "say it_1234, über 寿司!"
    assert tokens(text) == ["say", "it", "_", "0", ",", "über", "寿司", "!"]
    assert [text[begin:end] for begin, end in places(text)] == ["say", "it", "_", "1234", ",", "über", "寿司", "!"]


def test_pieces_are_of_long_words_and_of_other_scripts() -> None:
    assert pieces("cat") == pieces("0") == pieces("!") == []
    assert pieces("word") == ["c^wor", "cword", "cord$", "c^word", "cword$"]
    assert pieces("寿司") == ["c寿", "c司", "c寿司"]
    assert pieces("a" * 1000) == pieces("a" * LETTERS)


@pytest.mark.parametrize("count", [0, 1, STRIDE, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + STRIDE, WINDOW + STRIDE + 1, 5 * WINDOW + 7])
def test_windows_cover_every_token_and_every_half_window_as_a_whole(count: int) -> None:
    made = list(windows(count))
    assert {at for begin, end in made for at in range(begin, end)} == set(range(count))
    assert all(end - begin <= WINDOW for begin, end in made)
    size = min(STRIDE, count)
    assert all(any(begin <= at and at + size <= end for begin, end in made) for at in range(count - size + 1)) or count == 0


@given(st.lists(st.sampled_from(["ignore", "the", "寿司", "0", "!", "rules"]), max_size=8))
def test_what_is_known_of_a_text_is_what_its_features_are_named(words: list[str]) -> None:
    all_names = sorted(names(words)) if words else []
    found = known(words, KnownFeatures(all_names))
    assert len(found) == -(-len(words) // STRIDE)
    assert {all_names[number] for half in found for number in half} == set(all_names)
    assert not any(known(words, KnownFeatures([])))


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    folded = fold(text)
    words = tokens(folded)
    assert all(folded[begin:end] == word or word == "0" for word, (begin, end) in zip(words, places(folded), strict=True))
    assert not any(name.count("\n") for name in names(words))
