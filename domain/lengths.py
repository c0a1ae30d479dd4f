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

    __slots__ = ("_cut", "_ended", "_longest", "_total", "noted")

    def __init__(self) -> None:
        self._ended = array("H", bytes(2 * BUCKETS))
        self._cut: array[int] | None = None
        self._longest = 0
        """The last bucket that was ever filled: quantiles look no further."""
        self._total = 0
        self.noted = 0
        """Number of answers ever added."""

    def add(self, tokens: int, *, cut: bool = False) -> None:
        """Add an answer of `tokens`; `cut` when its cap ended it."""
        at = bytes((bucket(min(tokens, MAX_TOKENS)),))
        self.add_all(b"" if cut else at, at if cut else b"")

    def add_all(self, ended: bytes | bytearray, cut: bytes | bytearray) -> None:
        """Add the answers that a caller has gathered, at most `MEMORY`, each as its `bucket`: those that ended by themselves, and those
        that their cap has cut off. They count as equally old."""
        if ended:
            self._count(self._ended, ended)
        if cut:
            if self._cut is None:
                self._cut = array("H", bytes(2 * BUCKETS))
            self._count(self._cut, cut)
        if self._total >= 2 * MEMORY * _WEIGHT:
            self._halve()

    def _count(self, counts: "array[int]", buckets: bytes | bytearray) -> None:
        for at in set(buckets):  # answers of one program are often equally long
            counts[at] += _WEIGHT * buckets.count(at)
        self._longest = max(self._longest, *buckets)
        self._total += len(buckets) * _WEIGHT
        self.noted += len(buckets)

    def quantile(self, share: float) -> int | None:
        """The length in tokens that this share of answers does not exceed; None when there are no answers, or too many were cut off."""
        return self.quantiles(share)[0]

    def quantiles(self, *shares: float) -> list[int | None]:
        """The quantiles of shares that rise, in one look at the answers."""
        found: list[int | None] = [None] * len(shares)
        if self._total:
            (self._counted if self._cut is None else self._survived)(shares, found)
        return found

    def _halve(self) -> None:
        self._total = 0
        for counts in (self._ended, self._cut):
            if counts is not None:
                for at, count in enumerate(counts):
                    if count:
                        counts[at] = count >> 1
                self._total += sum(counts)

    def _counted(self, shares: tuple[float, ...], found: list[int | None]) -> None:
        # 1 - .9 is a little less than a tenth in floats: without the margin, the 0.9 quantile of ten answers would be the tenth
        few = [self._total * (1 - share) * (1 + 1e-9) for share in shares]
        above, next_ = self._total, 0
        for at, ended in enumerate(self._ended[: self._longest + 1]):
            if ended:
                above -= ended
                while above <= few[next_]:
                    found[next_] = longest(at)
                    next_ += 1
                    if next_ == len(few):
                        return

    def _survived(self, shares: tuple[float, ...], found: list[int | None]) -> None:
        assert self._cut is not None
        few = [1 - share + 1e-9 for share in shares]
        reach, surviving, next_ = float(self._total), 1.0, 0
        top = self._longest + 1
        for at, (ended, cut) in enumerate(zip(self._ended[:top], self._cut[:top], strict=True)):
            if ended:
                surviving *= 1 - ended / reach
                while surviving <= few[next_]:
                    found[next_] = longest(at)
                    next_ += 1
                    if next_ == len(few):
                        return
            elif not cut:
                continue
            reach -= ended + cut
            if reach <= 0:
                return


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
"""Fewer than 256: a bucket is one byte of what callers gather."""
