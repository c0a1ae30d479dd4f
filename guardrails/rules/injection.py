"""Prompt injection and jailbreaks by their words and their structure. Pure; no classifier.

The weights of the signs (`guardrails.rules.injection_signs`) that a text has are added, each sign once. From `threshold` on, all their
places are findings. Text that is encoded (base64, hexadecimal, URL) or written in characters that nobody sees is read too. Such rules find
what was copied and what was written plainly; they do not find what was made for the purpose, as `docs/numbers.md` says in figures.
"""

import re
from collections.abc import Sequence
from typing import Final

import re2

from guardrails.ports import Finding, Scanned
from guardrails.rules.injection_signs import SIGNS
from guardrails.text import Encoded, Text, decoded_spans

VERSION: Final = "injection 1"
THRESHOLD: Final = 1.0
HIDDEN_CHARS: Final = 10
"""So many tag characters, or letters each parted by characters without width, are no accident of an emoji or of a script."""
_TAGS: Final = ("\U000e0020", "\U000e007e")
JUNK_CHARS: Final = 2000
"""A longer message is a document or code."""
UNCLOSED: Final = 3
_PROSE: Final = re.compile(r"\s*(?:[^\W\d_][\w'-]*[,.]? ){4}")
_OPENS: Final = {")": "(", "]": "[", "}": "{"}
_MOST: Final = 64
"""Places of one sign that are noted; more say no more."""


class Injection:
    """Finds attempts to override instructions.

    Args:
        rule: the id of the rule.
        threshold: the sum of weights from which a text has findings; a lower one finds more, and more wrongly.
        depth: how many layers of encoding are read, 0 to 3.

    Findings are of the kinds `override`, `role`, `freedom`, `form`, `leak`, `turn`, `split`, `junk`, `hidden` and `encoded`.
    """

    version = VERSION

    def __init__(self, rule: str, *, threshold: float = THRESHOLD, depth: int = 1) -> None:
        options = re2.Options()
        options.log_errors = False
        self._rule = rule
        self._threshold = threshold
        self._depth = depth
        self._which = re2.Set.SearchSet(options)
        for sign in SIGNS:
            self._which.Add(sign.expression.encode())
        self._which.Compile()
        self._expressions = [re2.compile(sign.expression.encode(), options=options) for sign in SIGNS]

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> None:
        """None: signs of the whole text are added."""
        return None

    def scan(self, text: Scanned) -> Sequence[Finding]:
        found = self._hidden(text.original) + self._junk(text.original)
        encoded = Encoded(text.folded)
        which = self._which.Match(encoded.data) or ()
        inside = self._inside(text.original) if self._depth else []
        if not inside and not found and sum(SIGNS[index].weight for index in which) < self._threshold:
            return ()
        for index in which:
            for count, match in enumerate(self._expressions[index].finditer(encoded.data)):
                if count == _MOST:
                    break
                begin, end = encoded.char(match.start()), encoded.char(match.end())
                found.append(Finding(self._rule, SIGNS[index].kind, *text.span(begin, end)))
        return sorted(found + inside, key=_begin)

    def score(self, text: Scanned) -> float:
        """The sum of the weights of a text's signs."""
        which: list[int] = self._which.Match(Encoded(text.folded).data) or []
        return sum(SIGNS[index].weight for index in which)

    def _inside(self, original: str) -> list[Finding]:
        """Encoded spans that say what would be found if it stood there plainly."""
        return [
            Finding(self._rule, "encoded", span.begin, span.end)
            for span in decoded_spans(original, self._depth)
            if self.score(Text(span.text)) >= self._threshold
        ]

    def _junk(self, original: str) -> list[Finding]:
        """A suffix of brackets that do not close: what an optimiser appends to a plain request."""
        if len(original) > JUNK_CHARS or "\n" in original.strip() or not _PROSE.match(original):
            return []
        open_: list[tuple[str, int]] = []
        alone: list[int] = []
        for at, char in enumerate(original):
            if char in "([{":
                open_.append((char, at))
            elif char in ")]}" and open_ and open_[-1][0] == _OPENS[char]:
                open_.pop()
            elif char in "]}":  # a `)` alone stands in lists and in smileys
                alone.append(at)
        alone += [at for _, at in open_]
        if len(alone) < UNCLOSED:
            return []
        return [Finding(self._rule, "junk", min(alone), len(original))]

    def _hidden(self, original: str) -> list[Finding]:
        """A run of tag characters, which models read and nobody sees."""
        if original.isascii():
            return []
        places = [at for at, char in enumerate(original) if _TAGS[0] <= char <= _TAGS[1]]
        if len(places) < HIDDEN_CHARS:
            return []
        return [Finding(self._rule, "hidden", places[0], places[-1] + 1)]


def _begin(finding: Finding) -> int:
    return finding.begin
