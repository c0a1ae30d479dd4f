"""Keys, tokens and passwords in a text. Pure.

One automaton (RE2) looks for the prefixes of all formats at once; only where it stops are the formats themselves tried, each of a bounded
length. So a text without prefixes costs one pass, and no text costs more than a bounded amount for each prefix in it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from guardrails.ports import Finding, Scanned
from guardrails.rules.gate import Gate
from guardrails.rules.secret_formats import FORMATS, KINDS, START_CHARS, Format
from guardrails.text import Encoded, plain

VERSION: Final = "secrets 1"
_BLOCKS: Final = ("private_key", "jwt")
"""The kinds whose values are much longer than any other's."""


class Secrets:
    """Finds secrets by their published formats.

    Args:
        rule: the id of the rule.
        kinds: which kinds to look for, of `KINDS`; empty for all.
        whole_blocks: whether a private key block and a JWT are found to their end. Else the finding is their start, at most `START_CHARS`:
            enough to block a stream, which then holds back little, and too little to redact.

    Raises:
        ValueError: a kind is unknown.
    """

    version = VERSION

    def __init__(self, rule: str, kinds: Collection[str] = (), *, whole_blocks: bool = True) -> None:
        unknown = sorted(set(kinds).difference(KINDS))
        if unknown:
            raise ValueError(f"there is no kind of secret called {unknown[0]}; the kinds are {', '.join(KINDS)}")
        chosen = [entry for entry in FORMATS if not kinds or entry.kind in kinds]
        self._rule = rule
        self._whole = whole_blocks
        self._gate = Gate([entry.gate for entry in chosen])
        self._formats = chosen
        self._longest = 2 + max(START_CHARS if entry.kind in _BLOCKS and not whole_blocks else entry.longest for entry in chosen)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        return self._longest

    def scan(self, text: Scanned) -> Sequence[Finding]:
        form, span = plain(text)
        encoded = Encoded(form)
        found: dict[tuple[int, int], Format] = {}
        for byte, gates in self._gate.hits(encoded.data):
            at = encoded.char(byte)
            for index in gates:
                value = self._value(self._formats[index], form, at)
                if value is not None and (value not in found or found[value].yields):
                    found[value] = self._formats[index]
        if not found:
            return ()
        # a value that says itself what it is goes before one that only a name in front speaks for, the outer before the inner
        kept: dict[tuple[int, int], Format] = {}
        for place, entry in sorted(found.items(), key=_rank):
            if not _overlaps(place, kept):
                kept[place] = entry
        return [Finding(self._rule, entry.kind, *span(begin, end)) for (begin, end), entry in sorted(kept.items(), key=_place)]

    def _value(self, entry: Format, form: str, at: int) -> tuple[int, int] | None:
        """The span of a format's secret whose gate matched at a character."""
        for begin in range(max(0, at - entry.back), at + 1):
            match = entry.exact.match(form, begin)
            if match is not None:
                value = match.span("s" if "s" in entry.exact.groupindex else 0)
                if not entry.check(form[slice(*value)]):
                    return None
                return value if self._whole or entry.kind not in _BLOCKS else (value[0], min(value[1], value[0] + START_CHARS))
        return None


def _overlaps(place: tuple[int, int], others: Iterable[tuple[int, int]]) -> bool:
    return any(begin < place[1] and place[0] < end for begin, end in others)


def _place(item: tuple[tuple[int, int], Format]) -> tuple[int, int]:
    return item[0]


def _rank(item: tuple[tuple[int, int], Format]) -> tuple[bool, int, int]:
    (begin, end), entry = item
    return entry.yields, begin - end, begin
