"""Texts and scanners for tests of what stands above the rules."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from guardrails.chain import Chain, ChainRule
from guardrails.policy import Mode
from guardrails.ports import Finding, Scanned
from guardrails.verdict import GuardVerdict
from guardrails.window import GuardWindow

ZERO_WIDTH = "\u200b\u200d\u00ad"


class PlainText:
    """A text in lower case and without zero-width characters."""

    def __init__(self, original: str) -> None:
        self.original = original
        self._at = [at for at, character in enumerate(original) if character not in ZERO_WIDTH]
        self.folded = "".join([original[at].lower()[:1] for at in self._at])

    def span(self, begin: int, end: int) -> tuple[int, int]:
        return self._at[begin], self._at[end - 1] + 1


class Expression:
    """Every match of an expression in the folded text, also those that overlap. Whether it matches at one place depends on the characters
    of the match and on `around` ones beside it."""

    def __init__(self, id_: str, pattern: str, longest: int | None, kind: str = "thing") -> None:
        self.id = id_
        self.longest = longest
        self._pattern = re.compile(pattern)
        self._kind = kind

    def scan(self, text: Scanned) -> Sequence[Finding]:
        found = []
        begin = 0
        while match := self._pattern.search(text.folded, begin):
            found.append(Finding(self.id, self._kind, *text.span(*match.span())))
            begin = match.start() + 1
        return found


class Failing:
    """Raises where a text holds a word."""

    longest = 8

    def __init__(self, id_: str, word: str = "boom") -> None:
        self.id = id_
        self._word = word

    def scan(self, text: Scanned) -> Sequence[Finding]:
        if self._word in text.folded:
            raise RuntimeError("failed")
        return []


class Counting:
    """Counts the characters that another scanner scans."""

    def __init__(self, inner: Expression) -> None:
        self.id = inner.id
        self.longest = inner.longest
        self.scanned = 0
        self._scan = inner.scan

    def scan(self, text: Scanned) -> Sequence[Finding]:
        self.scanned += len(text.original)
        return self._scan(text)


def rule(
    mode: Mode,
    pattern: str,
    longest: int | None,
    *,
    id_: str = "",
    kind: str = "thing",
    replacement: str | None = None,
    restore: bool = False,
) -> ChainRule:
    return ChainRule(Expression(id_ or pattern, pattern, longest, kind), mode, replacement, restore=restore)


def chain(*rules: ChainRule, read: Callable[[str], Scanned] = PlainText) -> Chain:
    return Chain(rules, read)


def assert_streams_alike(rules: Chain, text: str, cuts: Iterable[Sequence[int]] | None = None) -> GuardVerdict:
    """The verdict on a text, after it has come through a window in pieces as well, and each time with the same verdict and text.

    Args:
        cuts: where the text is cut, one list for each stream; None for one cut at every place, and for pieces of 1, 2, 3 and 7 characters.
    """
    whole = rules.judge(text)
    if cuts is None:
        cuts = [[at] for at in range(len(text) + 1)] + [list(range(size, len(text), size)) for size in (1, 2, 3, 7)]
    for cut in cuts:
        window = GuardWindow(rules)
        passed = ""
        for begin, end in itertools.pairwise([0, *cut, len(text)]):
            passed += window.feed(text[begin:end]).text
        passed += window.end().text
        verdict = window.verdict()
        assert passed == whole.text
        assert (verdict.ended, verdict.by, verdict.cut, verdict.findings) == (whole.ended, whole.by, whole.cut, whole.findings)
    return whole
