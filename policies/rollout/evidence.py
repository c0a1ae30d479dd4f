"""What the intervals so far say of each metric: small, of fixed size, folded interval by interval, fit to be stored.

Ratios: the difference d of the arms' mean logarithms in one interval counts with weight 1 / (1/n + 1/m + `OWN`), of n and m requests. How
sure its mean is, is learned from how blocks of 1, 2, 4, ... 64 intervals scatter, and the widest of these answers holds: noise that
only one arm has and that lasts (one engine, one long conversation) makes neighbouring intervals alike, and longer blocks show it.
Until there are enough long blocks, so much of it is assumed as the metric says (`Metric.wander`).

Shares: the canary's hits are held against those that the baseline's rate in the same intervals foretells. Errors come in bursts; by
how much more an arm's counts scatter from one interval to the next than independent ones do, by so much less each of them counts.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from policies.rollout.samples import METRICS, NOTHING, Interval, Scale, Tally

BLOCKS: Final = 7
"""Block lengths: 1 to 64 intervals, ten minutes of intervals of ten seconds; noise that lasts longer is not seen as such."""
LEAST_BLOCKS: Final = 10
"""A scatter is taken from so many blocks at least."""
OWN: Final = 0.05
"""An arm's own noise in one interval, over that of a single request (variances): twenty requests each, and more tell little more. Without
it the few intervals of a large share would outweigh all before them, and be too few to tell how far they scatter."""
WANDER_S: Final = 120.0
"""What one arm alone does lasts so long: two time constants of a queue that empties within a minute."""
_FIELDS: Final = 6  # per block length: weight, squares of weights, weights times sums, squares of sums; weight and sum waiting for a pair
_PRIOR_HITS: Final = 10.0
"""Independent hits that every arm begins with, so that the first few do not decide how much each counts."""


class RatioEvidence(msgspec.Struct, frozen=True):
    """Of a metric whose logarithms are compared."""

    canary_n: int = 0
    baseline_n: int = 0
    weight: float = 0.0
    canary: float = 0.0
    """Sum over intervals of weight times mean logarithm."""
    baseline: float = 0.0
    intervals: int = 0
    blocks: tuple[float, ...] = (0.0,) * (BLOCKS * _FIELDS)

    def fold(self, canary: Tally, baseline: Tally) -> "RatioEvidence":
        """With one interval more; one that only one arm has says nothing."""
        if not canary.n or not baseline.n:
            return self
        weight = 1 / (1 / canary.n + 1 / baseline.n + OWN)
        of_canary, of_baseline = weight * canary.total / canary.n, weight * baseline.total / baseline.n
        return RatioEvidence(
            self.canary_n + canary.n,
            self.baseline_n + baseline.n,
            self.weight + weight,
            self.canary + of_canary,
            self.baseline + of_baseline,
            self.intervals + 1,
            self._blocks_with(weight, of_canary - of_baseline),
        )

    def _blocks_with(self, weight: float, total: float) -> tuple[float, ...]:
        blocks = list(self.blocks)
        for level in range(BLOCKS):
            at = level * _FIELDS
            blocks[at] += weight
            blocks[at + 1] += weight * weight
            blocks[at + 2] += weight * total
            blocks[at + 3] += total * total
            if not self.intervals >> level & 1:  # the first of a pair waits
                blocks[at + 4], blocks[at + 5] = weight, total
                break
            weight, total = weight + blocks[at + 4], total + blocks[at + 5]
        return tuple(blocks)

    @property
    def difference(self) -> float:
        """Of the mean logarithms, canary less baseline."""
        return (self.canary - self.baseline) / self.weight

    def scatter(self, strays: float) -> tuple[float, float]:
        """The variance of `difference`, and how many intervals of equal weight it is known from; infinite while there are too few.

        Args:
            strays: variance of what lasts in an arm, times the intervals that it lasts.
        """
        variance, known_from, mean = inf, 0.0, self.difference if self.weight else 0.0
        for at in range(0, BLOCKS * _FIELDS, _FIELDS):
            weight, squares, products, sums, _, _ = self.blocks[at : at + _FIELDS]
            count = weight * weight / squares if squares else 0.0
            if count < LEAST_BLOCKS:
                break
            around = max(0.0, sums - 2 * mean * products + mean * mean * squares) * count / (count - 1)
            estimate = around / (weight * self.weight)
            if not known_from:
                variance, known_from = estimate + strays / count, count
            variance = max(variance, estimate)
        return variance, known_from


class Scatter(msgspec.Struct, frozen=True):
    """How much more the counts of one arm scatter than independent ones."""

    hits: float = _PRIOR_HITS
    """Sum over pairs of neighbouring intervals: what the squared difference of their counts is on average if hits are independent."""
    apart: float = _PRIOR_HITS
    """Sum over pairs of that squared difference."""
    last: Tally = NOTHING

    def fold(self, now: Tally) -> "Scatter":
        """With one interval more."""
        last = self.last
        if not last.n:
            return Scatter(self.hits, self.apart, now)
        # each hit of the two is in one of them with a chance by its number n or m of requests: the squared difference of the shares
        # is hits / (n m) on average
        difference = now.total / now.n - last.total / last.n
        return Scatter(self.hits + last.total + now.total, self.apart + difference * difference * now.n * last.n, now)

    @property
    def dispersion(self) -> float:
        """Variance of counts over that of independent ones, 1 at least."""
        return max(1.0, self.apart / self.hits)


class ShareEvidence(msgspec.Struct, frozen=True):
    """Of a metric whose samples are 0 or 1."""

    canary_n: int = 0
    baseline_n: int = 0
    hits: float = 0.0
    """The canary's."""
    expected: float = 0.0
    """Hits that the canary would have had with the baseline's share of each interval."""
    spread: float = 0.0
    """Sum over intervals of the canary's squared number over the baseline's: what `expected` is unsure by."""
    squares: float = 0.0
    """Sum over intervals of the canary's squared number."""
    canary: Scatter = Scatter()
    baseline: Scatter = Scatter()

    def fold(self, canary: Tally, baseline: Tally) -> "ShareEvidence":
        """With one interval more; one that only one arm has says nothing."""
        if not canary.n or not baseline.n:
            return self
        return ShareEvidence(
            self.canary_n + canary.n,
            self.baseline_n + baseline.n,
            self.hits + canary.total,
            self.expected + canary.n * baseline.total / baseline.n,
            self.spread + canary.n * canary.n / baseline.n,
            self.squares + canary.n * canary.n,
            self.canary.fold(canary),
            self.baseline.fold(baseline),
        )

    def sure_as(self, strays: float) -> tuple[float, float]:
        """So many independent samples of canary and of baseline would be as sure as these are.

        Args:
            strays: as for ratios, of parts of the share.
        """
        share = min(0.5, (self.expected + 0.5) / (self.canary_n + 1))
        lasting = strays * share / (1 - share) * self.squares / self.canary_n**2
        canary = self.canary.dispersion / self.canary_n + lasting
        baseline = self.baseline.dispersion * self.spread / self.canary_n**2
        return 1 / canary, 1 / baseline


class Evidence(msgspec.Struct, frozen=True):
    """Of all metrics that are compared."""

    ratios: dict[str, RatioEvidence]
    shares: dict[str, ShareEvidence]
    requests: int = 0
    """The canary's that were counted."""

    def fold(self, interval: Interval) -> "Evidence":
        """With one interval more."""
        canary, baseline = interval.canary.tallies, interval.baseline.tallies
        return Evidence(
            {name: had.fold(canary.get(name, NOTHING), baseline.get(name, NOTHING)) for name, had in self.ratios.items()},
            {name: had.fold(canary.get(name, NOTHING), baseline.get(name, NOTHING)) for name, had in self.shares.items()},
            self.requests + interval.canary.requests,
        )


def no_evidence(margins: Mapping[str, float]) -> Evidence:
    """That of a rollout that begins, for the metrics named."""
    return Evidence(
        {name: RatioEvidence() for name in margins if METRICS[name].scale is Scale.RATIO},
        {name: ShareEvidence() for name in margins if METRICS[name].scale is Scale.SHARE},
    )
