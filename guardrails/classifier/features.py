"""What the classifier reads of a text: words, runs of two and three words, and pieces of words. Pure; training and scoring share it.

A text is its folded form (`guardrails.text`). A token is a run of letters, a run of digits (always read as `0`) or one other character.
Features, each as a string whose first character says which kind it is:

- `1w`: a token; `2v w` and `3u v w`: tokens that follow each other, with `<s>` before the first token of a text and `</s>` behind the last;
- `cpiece`: 4 and 5 characters of `^word$` for a word of four ASCII letters or more, and 1 and 2 characters of a word with other letters,
  so that scripts without blanks between words are read too.

A window is `WINDOW` tokens; the next one begins `STRIDE` tokens later. A feature counts once in a window.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import msgspec

WINDOW: Final = 128
"""Tokens of a window: about 500 characters, a paragraph. An attempt that is hidden in a long document fills its own window."""
STRIDE: Final = 64
"""Half a window, so that any 64 tokens that follow each other lie in one window as a whole."""
LETTERS: Final = 24
"""Letters of a word whose pieces are read; longer runs of letters are data, and their pieces would cost as much as a text."""

_TOKEN: Final = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a text and where they begin and end in its folded form, in characters."""

    words: list[str]
    places: list[tuple[int, int]]


def tokens(folded: str) -> Tokens:
    """The tokens of a folded text."""
    words: list[str] = []
    places: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(folded):
        word = match[0]
        words.append("0" if word[0].isdecimal() else word)
        places.append(match.span())
    return Tokens(words, places)


def pieces(word: str) -> list[str]:
    """The features of the pieces of one token."""
    cut = word[:LETTERS]
    if cut.isascii():
        if len(cut) < 4 or not cut[0].isalpha():
            return []
        whole = f"^{cut}$"
        return [f"c{whole[at : at + size]}" for size in (4, 5) for at in range(len(whole) - size + 1)]
    return [f"c{cut[at : at + size]}" for size in (1, 2) for at in range(len(cut) - size + 1)]


def windows(count: int) -> Iterator[tuple[int, int]]:
    """The windows of a text of `count` tokens, as the first token and the one behind the last."""
    if count == 0:
        return
    begin = 0
    while begin + WINDOW < count:
        yield begin, begin + WINDOW
        begin += STRIDE
    yield begin, count


def known(words: list[str], numbers: Mapping[str, int]) -> list[list[int]]:
    """For each token the numbers of its features that are known: its own, those of the runs that end with it, and those of its pieces.

    Args:
        words: the tokens of a whole text.
        numbers: the number of each known feature.
    """
    find = numbers.get
    of_word: dict[str, list[int]] = {}
    found: list[list[int]] = []
    before, last = "", "<s>"
    end = len(words)
    for at, word in enumerate(words):
        alone = of_word.get(word)
        if alone is None:
            alone = of_word[word] = [number for name in (f"1{word}", *pieces(word)) if (number := find(name)) is not None]
        two = find(f"2{last} {word}")
        three = find(f"3{before} {last} {word}") if before else None
        if two is not None or three is not None:
            alone = alone + [number for number in (two, three) if number is not None]
        if at + 1 == end:
            closing = (find(f"2{word} </s>"), find(f"3{last} {word} </s>"))
            alone = alone + [number for number in closing if number is not None]
        found.append(alone)
        before, last = last, word
    return found


def names(words: list[str]) -> set[str]:
    """All features of a text, for the choice of those that are kept."""
    padded = ["<s>", *words, "</s>"]
    found = {f"1{word}" for word in words}
    found.update(f"2{a} {b}" for a, b in pairwise(padded))
    found.update(f"3{a} {b} {c}" for a, b, c in zip(padded, padded[1:], padded[2:], strict=False))
    for word in set(words):
        found.update(pieces(word))
    return found
