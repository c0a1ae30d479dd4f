"""Whether two samples of times are of one distribution, and how well a threshold tells them apart."""

from collections.abc import Sequence
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

TERMS = 100
"""Terms of Kolmogorov's series; each is smaller than the one before it, and 100 give 15 digits from a statistic of 0.15 on."""
RESAMPLES = 1_000
EXACT_US = 0.1

_Floats = NDArray[np.float64]


class Difference(NamedTuple):
    """Two samples beside each other."""

    statistic: float
    """The largest distance of the two empirical distribution functions, 0 to 1. A guess by the best threshold is right in
    (1 + statistic) / 2 of the cases, where both are as frequent. The threshold is chosen behind the fact, so the statistic is above 0 by
    chance alone."""
    p: float
    """The chance of a statistic as large, if both samples were of one distribution."""


def kolmogorov(scaled: float) -> float:
    """The chance that Kolmogorov's distribution exceeds `scaled`, 0 to 1: 2 Σ (-1)^(k-1) exp(-2 k² scaled²) over k from 1 on.

    A. N. Kolmogorov, "Sulla determinazione empirica di una legge di distribuzione", 1933; N. Smirnov, "Table for estimating the goodness of
    fit of empirical distributions", 1948, which has it for two samples.
    """
    if scaled < 0.15:  # the series converges slowly there, and the chance differs from 1 by less than 1e-20
        return 1.0
    total = sum((1 if k % 2 else -1) * exp(-2 * (k * scaled) ** 2) for k in range(1, TERMS + 1))
    return min(1.0, max(0.0, 2 * total))


def compared(one: ArrayLike, other: ArrayLike) -> Difference:
    """The two-sample Kolmogorov-Smirnov test, two-sided.

    The chance is Smirnov's asymptotic one: that of `kolmogorov` for √(n₁ n₂ / (n₁ + n₂)) times the statistic. At n₁ = n₂ = 100 it is within
    12 % of the exact one where that is 0.001 to 0.3. Raises ValueError for an empty sample.
    """
    first, second = np.sort(np.asarray(one, np.float64)), np.sort(np.asarray(other, np.float64))
    if not first.size or not second.size:
        raise ValueError("a sample is empty")
    at = np.concatenate((first, second))
    below = np.searchsorted(first, at, side="right") / first.size, np.searchsorted(second, at, side="right") / second.size
    statistic = float(np.abs(below[0] - below[1]).max())
    return Difference(statistic, kolmogorov(sqrt(first.size * second.size / (first.size + second.size)) * statistic))


def area(shorter: ArrayLike, longer: ArrayLike) -> float:
    """The area under the ROC curve of "a short time is of the first sample": the share of the pairs in which the first's is the shorter
    one, equal ones by half (Mann and Whitney's U over n₁ n₂). 0.5 where the time says nothing, 1 where it says all. Raises ValueError for
    an empty sample."""
    first, second = np.asarray(shorter, np.float64), np.sort(np.asarray(longer, np.float64))
    if not first.size or not second.size:
        raise ValueError("a sample is empty")
    above = second.size - np.searchsorted(second, first, side="right")
    level = np.searchsorted(second, first, side="right") - np.searchsorted(second, first, side="left")
    return float((above + level / 2).sum() / (first.size * second.size))


def area_interval(shorter: ArrayLike, longer: ArrayLike, seed: int, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval of `area`: both samples drawn anew, with replacement, `RESAMPLES` times (B. Efron, "Bootstrap
    methods: another look at the jackknife", 1979). The same seed gives the same interval."""
    dice = np.random.default_rng(seed)
    first, second = np.asarray(shorter, np.float64), np.asarray(longer, np.float64)
    areas = [area(_drawn(first, dice), _drawn(second, dice)) for _ in range(RESAMPLES)]
    low, high = np.quantile(areas, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def _drawn(sample: _Floats, dice: np.random.Generator) -> _Floats:
    drawn: _Floats = dice.choice(sample, sample.size)
    return drawn


def would_be_seen(shorter: Sequence[float], longer: Sequence[float], p: float) -> float:
    """By how much every time of the first sample would have to be shorter for the test to give less than `p`: what a run could have found.

    In the unit of the samples, to within 0.1. Found by bisection; the statistic does not grow everywhere with the shift, so at some larger
    ones the test may say more than `p`. 0 where the samples differ as they are.
    """
    first, second = np.asarray(shorter, np.float64), np.asarray(longer, np.float64)
    if compared(first, second).p < p:
        return 0.0
    low, high = 0.0, max(EXACT_US, float(first.max() - second.min()) + 1.0)  # behind `high` no times overlap
    while high - low > EXACT_US:
        middle = (low + high) / 2
        low, high = (low, middle) if compared(first - middle, second).p < p else (middle, high)
    return high
