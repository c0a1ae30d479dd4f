"""Words of the request's system prompt that come back in its answer. Pure; linear in the length of the answer.

Texts are compared word by word in their folded form, so that case, punctuation and line breaks make no difference. A row of `min_words`
words that stands in the system prompt in the same order is a finding; of a longer row, each such part of it is one, and they overlap. So a
stream holds back no more than one part. A letter of a script that writes no spaces (Chinese, Japanese, Thai, …) is a word.
"""

from collections.abc import Sequence
from typing import Final

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
        signs, places = self._read(text.folded)
        found = []
        for last in range(least - 1, len(signs)):
            first = last - least + 1
            if signs[first : last + 1] in self._rows and places[last][1] - places[first][0] <= reach:
                found.append(Finding(self._rule, "prompt_leak", *text.span(places[first][0], places[last][1])))
        return found

    def opens_at(self, text: Scanned) -> int:
        """Where the words begin with which a row may be open: the last word, which more letters may change, and what stands in front of it
        as it stands in the system prompt."""
        if not self._rows:
            return len(text.original)
        signs, places = self._read(text.folded)
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

    def _read(self, form: str) -> tuple[str, list[tuple[int, int]]]:
        """The signs of a form's words, and their places."""
        signs = self._signs
        matches = list(_WORD.finditer(form))
        return "".join([signs.get(match.group(), _OTHER) for match in matches]), [match.span() for match in matches]
