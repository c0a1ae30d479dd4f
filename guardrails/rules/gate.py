"""One automaton in front of many expressions. Pure.

RE2 looks for all gates of a rule in one pass over the bytes of a text; a second automaton says which of them match at the place. Only
there the rule does its slower work.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import re2

from guardrails.text import LATIN1

_SEEN_BYTES: Final = 256
"""A gate's match is at most this long."""


class Gate:
    """The gates of a rule.

    Args:
        expressions: in the syntax of RE2; each matches ASCII only, and at most 256 bytes: one without a bound would make each search run
            to the end of a row of its characters, and the scan of such a row quadratic.
    """

    __slots__ = ("_any", "_which", "expressions")

    def __init__(self, expressions: Sequence[str]) -> None:
        self.expressions = tuple(expressions)
        self._any = re2.compile("|".join(f"(?:{expression})" for expression in expressions).encode(), options=LATIN1)
        self._which = re2.Set.MatchSet(LATIN1)
        for expression in expressions:
            self._which.Add(expression.encode())
        self._which.Compile()

    def first(self, data: bytes, begin: int) -> tuple[int, int] | None:
        """The first place at or behind a byte where a gate matches."""
        match = self._any.search(data, begin)
        return None if match is None else match.span()

    def at(self, data: bytes, begin: int) -> list[int]:
        """Which gates match at a byte, as positions in `expressions`. What stands in front of the byte is not seen."""
        found: list[int] | None = self._which.Match(data[begin : begin + _SEEN_BYTES])
        return found or []

    def hits(self, data: bytes) -> Iterator[tuple[int, list[int]]]:
        """All places, in order, each with its gates; a place inside another one's match too."""
        match = self._any.search(data)
        while match is not None:
            begin = match.start()
            yield begin, self.at(data, begin)
            match = self._any.search(data, begin + 1)

    def places(self, data: bytes) -> Iterator[int]:
        """All places that do not overlap."""
        for match in self._any.finditer(data):
            yield match.start()
