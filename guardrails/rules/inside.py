"""Any rule, also inside what is encoded. Pure."""

from collections.abc import Sequence
from typing import Final

from guardrails.ports import Finding, Scanned, Scanner
from guardrails.text import MAX_DEPTH, Text, decoded_spans

VERSION: Final = "inside 1"


class Inside:
    """Runs a rule over a text and over its base64, hexadecimal and URL-encoded parts.

    A finding inside an encoded part covers the whole part, because its characters cannot be told apart there.

    Args:
        scanner: the rule.
        depth: how many layers of encoding are taken off, 1 to `MAX_DEPTH`.

    Raises:
        ValueError: the depth is out of its bounds.
    """

    version = VERSION

    def __init__(self, scanner: Scanner, depth: int = 1) -> None:
        if not 1 <= depth <= MAX_DEPTH:
            raise ValueError(f"depth is {depth}; it lies between 1 and {MAX_DEPTH}")
        self._scanner = scanner
        self._depth = depth

    @property
    def id(self) -> str:
        return self._scanner.id

    @property
    def longest(self) -> None:
        """None: an encoded part has no bound that a stream could hold back."""
        return None

    def scan(self, text: Scanned) -> Sequence[Finding]:
        found = list(self._scanner.scan(text))
        places = {(finding.begin, finding.end) for finding in found}
        for span in decoded_spans(text.original, self._depth):
            for inner in self._scanner.scan(Text(span.text)):
                if (span.begin, span.end) not in places:
                    places.add((span.begin, span.end))
                    found.append(Finding(inner.rule, inner.kind, span.begin, span.end))
        return sorted(found, key=_begin)


def _begin(finding: Finding) -> int:
    return finding.begin
