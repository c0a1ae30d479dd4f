"""The evidence of all intervals so far, by metric: of a small fixed size, folded interval by interval, fit to be stored.

Ratios: the difference d of the arms' mean logarithms in one interval counts with weight 1 / (1/n + 1/m + `OWN_NOISE`), of n and m
requests. The variance of its mean is estimated from the scatter of blocks of 1, 2, 4, ... 64 intervals, and the largest estimate holds:
lasting noise of one arm alone (one engine, one long conversation) makes neighbouring intervals alike, and longer blocks show it. Until
there are enough long blocks, as much of it is assumed as `Metric.wander` says.

Shares: the canary's hits are compared with the hits that the baseline's rate in the same intervals predicts. Errors come in bursts, so
each sample's weight is divided by the overdispersion of the arm's counts: their scatter between intervals over that of independent ones.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from policies.rollout.samples import METRICS, NOTHING, Interval, Scale, Tally

BLOCKS: Final = 7
"""Block lengths: 1 to 64 intervals, ten minutes of intervals of ten seconds; noise that lasts longer is not recognised as such."""
LEAST_BLOCKS: Final = 10
"""Blocks of one length that an estimate of the scatter needs, at least."""
OWN_NOISE: Final = 0.05
"""Variance of an arm's own noise in one interval, relative to that of a single request: beyond twenty requests per arm, more add little.
Without it the few intervals of a large share would outweigh all earlier ones, and would be too few to estimate their scatter."""
WANDER_S: Final = 120.0
"""Seconds for which a deviation of one arm alone lasts: two time constants of a queue that empties within a minute."""
_FIELDS: Final = 6  # per block length: weight, weights squared, weights times sums, sums squared; weight and sum of an unpaired block
_PRIOR_HITS: Final = 10.0
"""Independent hits that every arm begins with, so that the first few hits do not decide the dispersion."""


class RatioEvidence(msgspec.Struct, frozen=True):
    """The evidence on a metric whose logarithms are compared."""

    canary_n: int = 0
    baseline_n: int = 0
    weight: float = 0.0
    canary: float = 0.0
    """Sum over intervals of weight times mean logarithm."""
    baseline: float = 0.0
    intervals: int = 0
    blocks: tuple[float, ...] = (0.0,) * (BLOCKS * _FIELDS)

    def fold(self, canary: Tally, baseline: Tally) -> "RatioEvidence":
        """The evidence with one more interval; an interval in which only one arm has samples is left out."""
        if not canary.n or not baseline.n:
            return self
        weight = 1 / (1 / canary.n + 1 / baseline.n + OWN_NOISE)
        canary_sum = weight * canary.total / canary.n
        baseline_sum = weight * baseline.total / baseline.n
        return RatioEvidence(
            self.canary_n + canary.n,
            self.baseline_n + baseline.n,
            self.weight + weight,
            self.canary + canary_sum,
            self.baseline + baseline_sum,
            self.intervals + 1,
            self._blocks_with(weight, canary_sum - baseline_sum),
        )

    def _blocks_with(self, weight: float, total: float) -> tuple[float, ...]:
        blocks = list(self.blocks)
        for level in range(BLOCKS):
            at = level * _FIELDS
            blocks[at] += weight
            blocks[at + 1] += weight * weight
            blocks[at + 2] += weight * total
            blocks[at + 3] += total * total
            if not self.intervals >> level & 1:  # the first block of a pair
                blocks[at + 4] = weight
                blocks[at + 5] = total
                break
            weight += blocks[at + 4]
            total += blocks[at + 5]
        return tuple(blocks)

    @property
    def difference(self) -> float:
        """The difference of the mean logarithms, canary minus baseline."""
        return (self.canary - self.baseline) / self.weight

    def scatter(self, lasting_variance: float) -> tuple[float, float]:
        """The variance of `difference`, and the effective number of intervals that it was estimated from; an infinite variance while there
        are too few.

        Args:
            lasting_variance: variance of an arm's lasting noise, times the intervals that it lasts.
        """
        variance = inf
        known_from = 0.0
        mean = self.difference if self.weight else 0.0
        for at in range(0, BLOCKS * _FIELDS, _FIELDS):
            weight, squares, products, sums, _, _ = self.blocks[at : at + _FIELDS]
            count = weight * weight / squares if squares else 0.0
            if count < LEAST_BLOCKS:
                break
            scattered = max(0.0, sums - 2 * mean * products + mean * mean * squares) * count / (count - 1)
            estimate = scattered / (weight * self.weight)
            if not known_from:
                variance = estimate + lasting_variance / count
                known_from = count
            variance = max(variance, estimate)
        return variance, known_from


class Scatter(msgspec.Struct, frozen=True):
    """The overdispersion of one arm's counts, from pairs of neighbouring intervals."""

    hits: float = _PRIOR_HITS
    """Sum over pairs of neighbouring intervals of the squared difference of their counts that independent hits would give on average."""
    apart: float = _PRIOR_HITS
    """Sum over the same pairs of the observed squared difference."""
    last: Tally = NOTHING

    def fold(self, now: Tally) -> "Scatter":
        """The counts with one more interval of the arm."""
        last = self.last
        if not last.n:
            return Scatter(self.hits, self.apart, now)
        # independent hits fall into the two intervals in proportion to their n and m requests: the squared difference of the shares is
        # then hits / (n m) on average
        difference = now.total / now.n - last.total / last.n
        return Scatter(self.hits + last.total + now.total, self.apart + difference * difference * now.n * last.n, now)

    @property
    def dispersion(self) -> float:
        """Variance of the counts over that of independent ones, at least 1."""
        return max(1.0, self.apart / self.hits)


class ShareEvidence(msgspec.Struct, frozen=True):
    """The evidence on a metric whose samples are 0 or 1."""

    canary_n: int = 0
    baseline_n: int = 0
    hits: float = 0.0
    """Hits of the canary."""
    expected: float = 0.0
    """Hits that the canary would have had with the baseline's share in each interval."""
    spread: float = 0.0
    """Sum over intervals of the canary's squared sample count over the baseline's; the variance of `expected` is proportional to it."""
    squares: float = 0.0
    """Sum over intervals of the canary's squared sample count."""
    canary: Scatter = Scatter()
    baseline: Scatter = Scatter()

    def fold(self, canary: Tally, baseline: Tally) -> "ShareEvidence":
        """The evidence with one more interval; an interval in which only one arm has samples is left out."""
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

    def effective_samples(self, lasting_variance: float) -> tuple[float, float]:
        """The effective sample sizes of canary and baseline: the numbers of independent samples with the same variance.

        Args:
            lasting_variance: as for ratios, relative to the squared share.
        """
        share = min(0.5, (self.expected + 0.5) / (self.canary_n + 1))
        lasting = lasting_variance * share / (1 - share) * self.squares / self.canary_n**2
        canary = self.canary.dispersion / self.canary_n + lasting
        baseline = self.baseline.dispersion * self.spread / self.canary_n**2
        return 1 / canary, 1 / baseline


class Evidence(msgspec.Struct, frozen=True):
    """The evidence on all metrics that are compared."""

    ratios: dict[str, RatioEvidence]
    shares: dict[str, ShareEvidence]
    requests: int = 0
    """Counted requests of the canary."""

    def fold(self, interval: Interval) -> "Evidence":
        """The evidence with one more interval."""
        canary = interval.canary.tallies
        baseline = interval.baseline.tallies
        return Evidence(
            {name: evidence.fold(canary.get(name, NOTHING), baseline.get(name, NOTHING)) for name, evidence in self.ratios.items()},
            {name: evidence.fold(canary.get(name, NOTHING), baseline.get(name, NOTHING)) for name, evidence in self.shares.items()},
            self.requests + interval.canary.requests,
        )


def no_evidence(margins: Mapping[str, float]) -> Evidence:
    """The empty evidence of a new rollout, for the metrics of `margins`."""
    return Evidence(
        {name: RatioEvidence() for name in margins if METRICS[name].scale is Scale.RATIO},
        {name: ShareEvidence() for name in margins if METRICS[name].scale is Scale.SHARE},
    )
