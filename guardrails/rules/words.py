"""Words and phrases of a list (Aho-Corasick over folded text). Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

import ahocorasick

from guardrails.ports import Finding, Scanned
from guardrails.text import fold

VERSION: Final = "words 1"
MAX_WORDS: Final = 10_000
MAX_CHARS: Final = 200
HIDDEN_CHARS: Final = 16
"""Characters without width that may stand inside a word of a stream; a stream holds back so many more."""


class Words:
    """Finds the words of a list, whatever their case, width and look-alike letters.

    Args:
        rule: the id of the rule.
        words: words and phrases, folded here as texts are; 1 to `MAX_WORDS`, each of at most `MAX_CHARS` characters.
        whole: whether a word is not found inside another one. The side of a word that ends in no letter or digit has no such bound.
        kind: what a finding is called.

    Raises:
        ValueError: there are no or too many words, or one is empty or too long.
    """

    version = VERSION

    def __init__(self, rule: str, words: Iterable[str], *, whole: bool = True, kind: str = "word") -> None:
        self._rule = rule
        self._kind = kind
        self._whole = whole
        self._automaton = ahocorasick.Automaton()
        self._longest = 0
        for count, word in enumerate(words, start=1):
            folded = fold(word)
            if not folded.strip():
                raise ValueError(f"the word {word!r} has nothing to look for; remove it")
            if len(folded) > MAX_CHARS:
                raise ValueError(f"the word {word[:20]!r}… has {len(folded)} characters; at most {MAX_CHARS} can stand here")
            if count > MAX_WORDS:
                raise ValueError(f"there are more than {MAX_WORDS} words")
            self._automaton.add_word(folded, len(folded))
            self._longest = max(self._longest, len(folded))
        if not self._longest:
            raise ValueError("there are no words")
        self._automaton.make_automaton()

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        return self._longest + 2 + HIDDEN_CHARS

    def scan(self, text: Scanned) -> Sequence[Finding]:
        folded = text.folded
        found = [(last - length + 1, last + 1) for last, length in self._automaton.iter(folded)]
        if self._whole:
            found = [place for place in found if _stands_alone(folded, *place)]
        outer: list[tuple[int, int]] = []
        for begin, end in sorted(found, key=_outer_first):
            if not outer or end > outer[-1][1]:
                outer.append((begin, end))
        return [Finding(self._rule, self._kind, *text.span(begin, end)) for begin, end in outer]


def _outer_first(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], -place[1]


def _of_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _stands_alone(text: str, begin: int, end: int) -> bool:
    return not (begin and _of_word(text[begin]) and _of_word(text[begin - 1])) and not (
        end < len(text) and _of_word(text[end - 1]) and _of_word(text[end])
    )
