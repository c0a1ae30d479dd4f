"""Keys, tokens and passwords in a text. Pure.

One automaton (RE2) looks for the prefixes of all formats at once; only where it stops are the formats themselves tried, each of a bounded
length. So a text without prefixes costs one pass, and no text costs more than a bounded amount for each prefix in it. A prefix inside
another one's match is tried as well, so that a finding depends on the text around it and not on where the scan began.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from guardrails.ports import Finding, Scanned
from guardrails.rules.gate import Gate
from guardrails.rules.secret_formats import FORMATS, KINDS, Format, key_block_opens_at
from guardrails.text import BREAKS, Encoded, last_break, plain

VERSION: Final = "secrets 2"
BEFORE_CHARS: Final = 160
"""A name that says what a value is begins at most this far in front of the value."""
_BREAKS: Final = BREAKS + "'"
_BASIC: Final = "basic "
"""The word behind which eight letters alone may be a secret."""
_STIRRED: Final = ("0-9@", r"bB\-", "[bB][aA][sS][iI][cC] |-----")
"""What a secret of less than 16 characters, or the word in front of it, has within the characters up to the next blank: a digit, the `@`
behind a password, that word, or the beginning of a key block."""


class Secrets:
    """Finds secrets by their published formats.

    Args:
        rule: the id of the rule.
        kinds: which kinds to look for, of `KINDS`; empty for all.

    Raises:
        ValueError: a kind is unknown.
    """

    version = VERSION
    before = BEFORE_CHARS
    stirred_by = _STIRRED

    def __init__(self, rule: str, kinds: Collection[str] = ()) -> None:
        unknown = sorted(set(kinds).difference(KINDS))
        if unknown:
            raise ValueError(f"there is no kind of secret called {unknown[0]}; the kinds are {', '.join(KINDS)}")
        chosen = [entry for entry in FORMATS if not kinds or entry.kind in kinds]
        self._rule = rule
        self._gate = Gate([entry.gate for entry in chosen])
        self._formats = chosen
        self._blocks = any(entry.kind == "private_key" for entry in chosen)
        self._longest = 2 + max(entry.longest for entry in chosen)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        return self._longest

    def opens_at(self, text: Scanned) -> int:
        """No value but a key block has a blank or a quotation mark inside; the last run of other characters may go on."""
        form, span = plain(text)
        at = last_break(form, _BREAKS)
        if form[max(0, at + 1 - len(_BASIC)) : at + 1].lower() == _BASIC:
            at += 1 - len(_BASIC)
        if self._blocks:
            at = min(at, key_block_opens_at(form))
        return span(at, at + 1)[0] if at else 0

    def scan(self, text: Scanned) -> Sequence[Finding]:
        form, span = plain(text)
        encoded = Encoded(form)
        found: dict[tuple[int, int], Format] = {}
        for byte, gates in self._gate.hits(encoded.data):
            at = encoded.char(byte)
            for index in gates:
                value = _value(self._formats[index], form, at)
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


def _value(entry: Format, form: str, at: int) -> tuple[int, int] | None:
    """The span of a format's secret whose gate matched at a character."""
    for begin in range(max(0, at - entry.back), at + 1):
        match = entry.exact.match(form, begin)
        if match is not None:
            value = match.span("s" if "s" in entry.exact.groupindex else 0)
            return value if entry.check(form[slice(*value)]) else None
    return None


def _overlaps(place: tuple[int, int], others: Iterable[tuple[int, int]]) -> bool:
    return any(begin < place[1] and place[0] < end for begin, end in others)


def _place(item: tuple[tuple[int, int], Format]) -> tuple[int, int]:
    return item[0]


def _rank(item: tuple[tuple[int, int], Format]) -> tuple[bool, int, int]:
    (begin, end), entry = item
    return entry.yields, begin - end, begin
