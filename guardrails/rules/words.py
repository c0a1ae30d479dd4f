"""Words and phrases of a list (Aho-Corasick over folded text). Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import ahocorasick

from guardrails.ports import Finding, Scanned
from guardrails.text import WEIGHTLESS, Text, fold

VERSION: Final = "words 1"
MAX_WORDS: Final = 10_000
MAX_CHARS: Final = 200
STIRRING_CHARS: Final = 6
MAX_STIRRING: Final = 64
"""Beginnings of words that are looked for in a text before it is scanned; with more of them a scan costs no more."""
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
    stirred_by: tuple[str, str, str] | None

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
        self.before = self.longest
        self.stirred_by = _stirred(list(self._automaton.keys()), whole=whole)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        return self._longest + 2 + HIDDEN_CHARS

    def opens_at(self, text: Scanned) -> int:
        """The first place from which the text may be the beginning of a word. Its last character, which a mark may change, is not known."""
        original = text.original
        end = len(original)
        while end and WEIGHTLESS.match(original[end - 1]):
            end -= 1
        last = max(0, end - 1)
        known = Text(original[:last])
        folded = known.folded
        for at in range(max(0, len(folded) - self._longest), len(folded)):
            if self._whole and at and _of_word(folded[at]) and _of_word(folded[at - 1]):
                continue
            if self._automaton.longest_prefix(folded[at:]) == len(folded) - at:
                return known.span(at, at + 1)[0]
        return last

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


def _stirred(words: Sequence[str], *, whole: bool) -> tuple[str, str, str] | None:
    """The beginnings of words, in both cases; None where there are many, or where one does not begin with an ASCII letter or digit."""
    beginnings = {word.split()[0][:STIRRING_CHARS] for word in words if word[:1].strip()}
    if len(beginnings) > MAX_STIRRING or not all(word[:1].isalnum() and word.isascii() for word in words):
        return None
    either = "|".join(
        ["".join([f"[{char}{char.upper()}]" if char.isalpha() else re.escape(char) for char in part]) for part in sorted(beginnings)]
    )
    # a character in front that is not ASCII may end in a mark, beside which a word stands alone
    firsts = "".join(sorted({char for part in beginnings for char in (part[0], part[0].upper())}))
    return "", firsts, rf"(?<![A-Za-z0-9_])(?:{either})" if whole else f"(?:{either})"


def _outer_first(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], -place[1]


def _of_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _stands_alone(text: str, begin: int, end: int) -> bool:
    return not (begin and _of_word(text[begin]) and _of_word(text[begin - 1])) and not (
        end < len(text) and _of_word(text[end - 1]) and _of_word(text[end])
    )
