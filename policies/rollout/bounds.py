"""Anytime-valid confidence bounds, which hold at all looks at once, whenever one stops: the formulas, on plain numbers.

Both are mixture sequential tests (mSPRT: Robbins, "Statistical methods related to the law of the iterated logarithm", 1970; Johari,
Pekelis, Walsh, "Always valid inference", 2015) turned into bounds: the likelihood of the observations averaged over a prior, divided by
their likelihood at a value, is a martingale if that value is the true one, so by Ville's inequality the ratio ever exceeds 1/alpha with
probability alpha at most. The bounds enclose the values at which the ratio does not exceed 1/alpha.
"""

from math import exp, inf, lgamma, log, log1p, sqrt
from typing import Final

_HALF_HALF: Final = 2 * lgamma(0.5)
"""Logarithm of the Beta function at (1/2, 1/2)."""
_MAX_NEWTON_STEPS: Final = 60
_TOLERANCE: Final = 1e-9


def mean_radius(variance: float, information: float, blocks: float, alpha: float, tight_at: float) -> float:
    """The distance from the observed mean within which the true mean lies, on one side, with probability 1 - alpha for all time.
    Infinite while there are too few blocks.

    With x = t^2 / (T - 1), t the mean over its standard error, T blocks, q = k / (k + I), I the information: the mixture over a normal
    prior of variance s^2 / k, s unknown, is sqrt(q) * ((1 + x) / (1 + q x))^(T/2) (Lai, "On confidence sequences", 1976; Wang and
    Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2024). For many blocks it is
    Robbins' normal mixture, and for data that are not normal an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha,
    Kennedy, Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", 2021). Two sides share 2 alpha.

    Args:
        variance: of the mean, estimated from how blocks scatter.
        information: of the observations; any unit in which the mean's variance is inversely proportional to it.
        blocks: the number of blocks that the variance was estimated from.
        tight_at: the information at which the bound is to be tightest.
    """
    two_sided = min(1.0, 2 * alpha)
    budget = -2 * log(two_sided)
    k = tight_at / (budget + log1p(budget))  # Howard, Ramdas, McAuliffe, Sekhon 2021, proposition 3
    q = k / (k + information)
    growth = exp((budget - log(q)) / blocks) if blocks > 1 else inf  # (1 / (two_sided sqrt(q)))^(2 / T)
    if blocks <= 1 or growth * q >= 1:
        return inf
    return sqrt(variance * (blocks - 1) * (growth - 1) / (1 - growth * q))


def share_low(hits: float, n: float, alpha: float) -> float:
    """The lower bound of the share of hits, with probability 1 - alpha for all time; the upper bound is `1 - share_low(n - hits, …)`.

    The mixture is over the Beta(1/2, 1/2) prior (Robbins 1970, example 3; Howard and others 2021, section 3.4): the share p is possible
    while log B(h + 1/2, n - h + 1/2) - log B(1/2, 1/2) - h log p - (n - h) log(1 - p) < log(1 / alpha).

    Args:
        hits: of `n` samples; both may be fractions: overdispersed counts are scaled down.
    """
    if hits <= 0 or n <= 0:
        return 0.0
    misses = max(0.0, n - hits)
    target = lgamma(hits + 0.5) + lgamma(misses + 0.5) - lgamma(n + 1) - _HALF_HALF + log(alpha)
    if misses < _TOLERANCE:
        return exp(target / hits)
    # h log p + (n - h) log(1 - p) is concave in log p: Newton's steps from anywhere left of its top converge from the left. They begin
    # where the parabola at the top meets the target
    top = log(hits / n)
    fall = hits * top + misses * log(misses / n) - target
    at = top - sqrt(2 * fall * misses / (n * hits))
    for _ in range(_MAX_NEWTON_STEPS):
        p = exp(at)
        step = (target - hits * at - misses * log1p(-p)) / (hits - misses * p / (1 - p))
        at += step
        if abs(step) < _TOLERANCE:
            break
    return exp(at)
