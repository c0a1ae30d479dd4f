"""What the classifier reads of a text: words, runs of two and three words, and pieces of words. Pure; training and scoring share it.

A text is its folded form (`guardrails.text`). A token is a run of letters, a run of digits (always read as `0`) or one other character.
Features, each as a string whose first character says which kind it is:

- `1w`: a token; `2v w` and `3u v w`: tokens that follow each other, with `<s>` before the first token of a text and `</s>` behind the last;
- `cpiece`: 4 and 5 characters of `^word$` for a word of four ASCII letters or more, and 1 and 2 characters of a word with other letters,
  so that scripts without blanks between words are read too.

A window is `WINDOW` tokens; the next one begins `STRIDE` tokens later. A feature counts once in a window.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

WINDOW: Final = 128
"""TextTokens of a window: about 500 characters, a paragraph. An attempt that is hidden in a long document fills its own window."""
STRIDE: Final = 64
"""Half a window, so that any 64 tokens that follow each other lie in one window as a whole."""
LETTERS: Final = 24
"""Letters of a word whose pieces are read; longer runs of letters are data, and their pieces would cost as much as a text."""

START: Final = "<s>"
END: Final = "</s>"
_BITS: Final = 20
_THREE: Final = 1 << 60
_TOKEN: Final = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


def tokens(folded: str) -> list[str]:
    """The tokens of a folded text."""
    return ["0" if word[0].isdecimal() else word for word in _TOKEN.findall(folded)]


def places(folded: str) -> list[tuple[int, int]]:
    """Where each token begins and ends in the folded text, in characters."""
    return [match.span() for match in _TOKEN.finditer(folded)]


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


class KnownFeatures:
    """The features that are known, found without making their names: a run of words is looked up by the numbers of its words.

    Args:
        features: the names; the number of a feature is its place.
    """

    def __init__(self, features: Iterable[str]) -> None:
        self.alone: Final[dict[str, int]] = {}
        """Features of single tokens and of pieces, by name."""
        self.words: Final[dict[str, int]] = {START: 0, END: 1}
        """The words of all runs."""
        self.runs: Final[dict[int, int]] = {}
        """Features of two words (20 bits for each) and of three (with one bit in front)."""
        for number, name in enumerate(features):
            if name[0] not in "23":
                self.alone[name] = number
                continue
            run = _THREE if name[0] == "3" else 0
            for place, word in enumerate(reversed(name[1:].split(" "))):
                run |= self.words.setdefault(word, len(self.words)) << (_BITS * place)
            self.runs[run] = number
        if len(self.words) >= 1 << _BITS:
            raise ValueError(f"runs have {len(self.words)} different words; at most {(1 << _BITS) - 1} are possible")


def known(words: Sequence[str], vocabulary: KnownFeatures) -> list[set[int]]:
    """For each half window (`STRIDE` tokens) of a whole text the numbers of its features that are known.

    A run belongs to the token that it ends with, one that ends with the end of the text to the last token.
    """
    alone, code_of, run_of = vocabulary.alone.get, vocabulary.words.get, vocabulary.runs.get
    of_word: dict[str, tuple[list[int], int | None]] = {}
    halves: list[set[int]] = []
    before: int | None = None
    last: int | None = 0
    for at in range(0, len(words), STRIDE):
        half: set[int] = set()
        halves.append(half)
        for word in words[at : at + STRIDE]:
            entry = of_word.get(word)
            if entry is None:
                own = [number for name in (f"1{word}", *pieces(word)) if (number := alone(name)) is not None]
                entry = of_word[word] = (own, code_of(word))
            numbers, code = entry
            half.update(numbers)
            if code is not None and last is not None:
                pair = last << _BITS | code
                if (two := run_of(pair)) is not None:
                    half.add(two)
                if before is not None and (three := run_of(_THREE | before << 2 * _BITS | pair)) is not None:
                    half.add(three)
            before, last = last, code
    if halves and last is not None:
        pair = last << _BITS | 1
        closing = (run_of(pair), None if before is None else run_of(_THREE | before << 2 * _BITS | pair))
        halves[-1].update(number for number in closing if number is not None)
    return halves


def halves_of(begin: int, end: int) -> tuple[int, int]:
    """The first half window of a window, and the last one, which may be the same."""
    return begin // STRIDE, (end - 1) // STRIDE


def names(words: list[str]) -> set[str]:
    """All features of a text, for the choice of those that are kept."""
    padded = [START, *words, END]
    found = {f"1{word}" for word in words}
    found.update(f"2{a} {b}" for a, b in pairwise(padded))
    found.update(f"3{a} {b} {c}" for a, b, c in zip(padded, padded[1:], padded[2:], strict=False))
    for word in set(words):
        found.update(pieces(word))
    return found
