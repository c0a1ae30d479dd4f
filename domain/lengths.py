"""How long answers get: a small histogram of token counts that forgets, and its quantiles. Pure.

Up to 15 tokens every length has a bucket of its own, above there are eight in every doubling, so that a quantile told is at most an eighth
above the length it stands for, and never below. Older answers weigh half as much after every `MEMORY` newer ones.

An answer that was cut off by its cap would have been longer by nobody knows how much. Quantiles take that into account as Kaplan and
Meier do (J. Am. Stat. Assoc. 53, 1958): it counts among those that reach its length, and says nothing of longer ones.
"""

from array import array
from typing import Final

MEMORY: Final = 1024
MAX_TOKENS: Final = 2**24 - 1
"""Longest answer told apart; above what any model writes."""

_EXACT: Final = 16
_WEIGHT: Final = 16
"""Of one answer, so that halving it a few times leaves something."""


class Lengths:
    """Some 0.5 KB, and as much again once an answer was cut off."""

    __slots__ = ("_cut", "_ended", "_total", "noted")

    def __init__(self) -> None:
        self._ended = array("H", bytes(2 * BUCKETS))
        self._cut: array[int] | None = None
        self._total = 0
        self.noted = 0
        """Answers ever added."""

    def add(self, tokens: int, *, cut: bool = False) -> None:
        """One answer; `cut` when its cap ended it."""
        counts = self._ended
        if cut:
            if self._cut is None:
                self._cut = array("H", bytes(2 * BUCKETS))
            counts = self._cut
        counts[bucket(min(tokens, MAX_TOKENS))] += _WEIGHT
        self._total += _WEIGHT
        self.noted += 1
        if self._total >= 2 * MEMORY * _WEIGHT:
            self._halve()

    def quantile(self, share: float) -> int | None:
        """Tokens that this share of answers stays within; None while there are none, or so many were cut off that nobody can say."""
        return self._counted(share) if self._cut is None else self._survived(share)

    def _halve(self) -> None:
        self._total = 0
        for counts in (self._ended, self._cut):
            if counts is not None:
                for at, count in enumerate(counts):
                    if count:
                        counts[at] = count >> 1
                self._total += sum(counts)

    def _counted(self, share: float) -> int | None:
        # 1 - .9 is a little less than a tenth, which must not make the ninth of ten the tenth
        above = 0
        few = self._total * (1 - share) * (1 + 1e-9)
        for at in range(BUCKETS - 1, -1, -1):
            above += self._ended[at]
            if above > few:
                return longest(at)
        return None

    def _survived(self, share: float) -> int | None:
        assert self._cut is not None
        reach = float(self._total)
        surviving = 1.0
        few = 1 - share
        for at, (ended, cut) in enumerate(zip(self._ended, self._cut, strict=True)):
            if ended:
                surviving *= 1 - ended / reach
                if surviving <= few + 1e-9:
                    return longest(at)
            reach -= ended + cut
            if reach <= 0:
                break
        return None


def bucket(tokens: int) -> int:
    """The bucket that a length of 0 to `MAX_TOKENS` falls into."""
    if tokens < _EXACT:
        return tokens
    octave = tokens.bit_length() - 4
    return _EXACT + (octave - 1) * 8 + (tokens >> octave) - 8


def longest(at: int) -> int:
    """The longest answer that falls into a bucket."""
    if at < _EXACT:
        return at
    octave, step = divmod(at - _EXACT, 8)
    return ((step + 9) << (octave + 1)) - 1


BUCKETS: Final = bucket(MAX_TOKENS) + 1
