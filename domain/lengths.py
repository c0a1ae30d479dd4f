"""Answer lengths: a small histogram of token counts with decay, and its quantiles. Pure.

Up to 15 tokens every length has its own bucket, above there are eight buckets in every doubling, so that a returned quantile is at most an
eighth above the true length, and never below. Older answers weigh half as much after every `MEMORY` newer ones.

An answer that was cut off by its cap would have been longer by an unknown amount. Quantiles treat it as censored, by the estimator of
Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958): it counts as an answer of at least its length, and not at greater lengths.
"""

from array import array
from typing import Final

MEMORY: Final = 1024
"""Answers after which older ones weigh half as much."""
MAX_TOKENS: Final = 2**24 - 1
"""Longest answer distinguished, in tokens; longer than any model writes."""

_EXACT: Final = 16
"""Lengths below this have a bucket each."""
_WEIGHT: Final = 16
"""Weight of one new answer, so that it can be halved a few times in integers."""


class Lengths:
    """The histogram: some 0.5 KB, and as much again once an answer was cut off."""

    __slots__ = ("_cut", "_ended", "_total", "noted")

    def __init__(self) -> None:
        self._ended = array("H", bytes(2 * BUCKETS))
        self._cut: array[int] | None = None
        self._total = 0
        self.noted = 0
        """Number of answers ever added."""

    def add(self, tokens: int, *, cut: bool = False) -> None:
        """Add an answer of `tokens`; `cut` when its cap ended it."""
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
        """The length in tokens that this share of answers does not exceed; None when there are no answers, or too many were cut off."""
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
        # 1 - .9 is a little less than a tenth in floats: without the margin, the 0.9 quantile of ten answers would be the tenth
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
