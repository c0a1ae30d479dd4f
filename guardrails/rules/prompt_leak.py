"""Words of the request's system prompt that come back in its answer. Pure; linear in the length of the answer.

Texts are compared word by word in their folded form, so that case, punctuation and line breaks make no difference. A row of `min_words`
words that stands in the system prompt in the same order is a finding; of a longer row, each such part of it is one, and they overlap. So a
stream holds back no more than one part. A letter of a script that writes no spaces (Chinese, Japanese, Thai, …) is a word.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import regex

from guardrails.ports import Finding, Scanned
from guardrails.text import fold, held_from, last_sure

VERSION: Final = "prompt_leak 1"
CHARS_OF_WORD: Final = 20
"""Characters that a row may take for each of its words, spaces and punctuation too: three times what English needs. Rows that are pulled
apart further are not found, because a stream has to have a bound."""
MAX_SYSTEM_WORDS: Final = 50_000
"""Words of a request's system prompt that are compared; what stands behind them is not."""

_SPACELESS: Final = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORD: Final = regex.compile(rf"[{_SPACELESS}]|[\w--[{_SPACELESS}]]+", regex.VERSION1)

_ASCII_WORD: Final = re.compile(r"\w+")
_OTHER: Final = "\0"
"""The sign of words that the system prompt does not have, and of the end of each of its texts."""


class PromptLeak:
    """Finds parts of the system prompt.

    Args:
        rule: the id of the rule.
        min_words: words in a row that make a finding.
        system: the texts of the system prompt; none finds nothing.

    Raises:
        ValueError: `min_words` is less than 2.
    """

    version = VERSION

    def __init__(self, rule: str, *, min_words: int = 12, system: Sequence[str] = ()) -> None:
        if min_words < 2:
            raise ValueError(f"min_words is {min_words}; at least 2 words are a row")
        self._rule = rule
        self._least = min_words
        self._signs: dict[str, str] = {}
        """A character for each word of the system prompt, so that rows of words are compared as texts."""
        learned = []
        room = MAX_SYSTEM_WORDS
        for text in system:
            words = _WORD.findall(fold(text))[:room]
            room -= len(words)
            learned.append("".join([self._signs.setdefault(word, chr(len(self._signs) + 1)) for word in words]))
        self._learned = _OTHER.join(learned)
        rows = [text[at : at + min_words] for text in learned for at in range(len(text) - min_words + 1)]
        self._rows = frozenset(rows)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        """A row, and the character on either side that shows where its words end."""
        return self._reach + 2

    @property
    def _reach(self) -> int:
        return CHARS_OF_WORD * self._least

    def bound(self, system: Sequence[str]) -> "PromptLeak":
        return PromptLeak(self._rule, min_words=self._least, system=system)

    def scan(self, text: Scanned) -> Sequence[Finding]:
        if not self._rows:
            return ()
        least, reach = self._least, self._reach
        signs = self._signs_of(text.folded)
        firsts = [first for first in range(len(signs) - least + 1) if signs[first : first + least] in self._rows]
        if not firsts:
            return ()
        places = _places(text.folded)
        rows = [(places[first][0], places[first + least - 1][1]) for first in firsts]
        return [Finding(self._rule, "prompt_leak", *text.span(*row)) for row in rows if row[1] - row[0] <= reach]

    @property
    def before(self) -> int:
        return self.longest

    @property
    def stirred_by(self) -> None:
        """None: what such a rule looks for may begin with any character."""
        return None

    def opens_at(self, text: Scanned) -> int:
        """Where the words begin with which a row may be open: the last word, which more letters may change, and what stands in front of it
        as it stands in the system prompt."""
        if not self._rows:
            return len(text.original)
        signs, places = self._signs_of(text.folded), _places(text.folded)
        opens = sure = last_sure(text)
        while places and places[-1][1] >= sure:
            opens = min(opens, places.pop()[0])
        signs = signs[: len(places)]
        count = 0
        while count < min(self._least - 1, len(signs)) and signs[-count - 1 :] in self._learned and signs[-count - 1] != _OTHER:
            count += 1
        if count:
            opens = places[-count][0]
        return held_from(text, opens)

    def _signs_of(self, form: str) -> str:
        """The signs of a form's words."""
        signs = self._signs
        return "".join([signs.get(word, _OTHER) for word in _word_of(form).findall(form)])


def _word_of(form: str) -> Any:
    """What matches the words of a form. The library's own expressions are three times faster, and know no scripts."""
    return _ASCII_WORD if form.isascii() else _WORD


def _places(form: str) -> list[tuple[int, int]]:
    """The spans of a form's words."""
    return [match.span() for match in _word_of(form).finditer(form)]
