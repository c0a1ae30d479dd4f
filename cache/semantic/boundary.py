"""The learned boundary of one answer: how probable it is right at a score, and how far that may be trusted.

The mathematics are those of verified semantic caching (Schroeder et al., "vCache: Verified Semantic Prompt Caching", 2025), written from
the paper: logistic regression with two parameters, and a lower bound from the delta method. Three things differ:

- The score is not the similarity alone but what the partition's pooled boundary makes of several features (`cache.semantic.pooled`).
- The regression has a Gaussian prior around "as the pooled boundary says", so an answer without observations is judged as its partition
  is. A prior also keeps the Hessian regular where the classes separate perfectly: the observations hardly bend the likelihood there,
  the covariance stays near the prior's, and no table of variances for that case is needed.
- The bound is taken at the score that is asked, not at the boundary's place t = -b0/b1: the variance of b0 + b1 s is finite also where
  b1 is near 0, where that of t is not. With the slope held fast both are the same: g (s - t - z sd(t)) = b0 + b1 s - z sd(b0).

`bench/cache/paper.py` has the paper's decision as it stands there, measured beside this one.
"""

from collections.abc import Sequence
from math import exp, log1p, sqrt
from typing import NamedTuple

STEPS = 30
"""Most Newton steps of a fit; four or five suffice as a rule."""
CLOSE = 1e-6
"""A step shorter than this ends a fit."""
LEAST_PART = 1e-4
"""The least part of a step that is tried."""
TRUST = 1.0
"""Standard deviations that the bound lies below the estimate. What the bound is worth is measured afterwards (`cache.semantic.control`),
so this only says how much an answer that is little known is held back behind one that is known well."""


class Sample(NamedTuple):
    """What was seen once: a score, whether the kept answer was right there, and how much it still counts (0 to 1)."""

    score: float
    right: bool
    weight: float = 1.0


class Prior(NamedTuple):
    """Independent Gaussians of the two parameters: means, and precisions (1/variance), which have to be above 0."""

    intercept: float
    slope: float
    intercept_precision: float
    slope_precision: float


class Boundary(NamedTuple):
    """P(right | score s) = sigmoid(intercept + slope s), with the covariance of both parameters."""

    intercept: float
    slope: float
    var_intercept: float
    covariance: float
    var_slope: float

    def logit(self, score: float) -> float:
        """The log odds of being right at a score."""
        return self.intercept + self.slope * score

    def assured(self, score: float) -> float:
        """The lower bound of `logit` there: `TRUST` standard deviations below it."""
        return self.logit(score) - TRUST * self.deviation(score)

    def deviation(self, score: float) -> float:
        """The standard deviation of `logit` there: sqrt(g' C g) with the gradient g = (1, s) (delta method)."""
        return sqrt(max(0.0, self.var_intercept + 2 * score * self.covariance + score * score * self.var_slope))


def sigmoid(logit: float) -> float:
    """1 / (1 + e^-x) without overflow."""
    if logit >= 0:
        return 1 / (1 + exp(-logit))
    grown = exp(logit)
    return grown / (1 + grown)


def at_rest(prior: Prior) -> Boundary:
    """The boundary of what was never observed: its prior."""
    return Boundary(prior.intercept, prior.slope, 1 / prior.intercept_precision, 0.0, 1 / prior.slope_precision)


def fit(samples: Sequence[Sample], prior: Prior) -> Boundary:
    """The mode of the posterior and, as its covariance, the inverse Hessian there (Laplace's approximation).

    Newton's method on the weighted log likelihood plus the prior, each step halved until the posterior does not fall: it is concave, so
    this converges from everywhere. The Hessian is at least the prior's precision, so it has an inverse.
    """
    b0, b1 = prior.intercept, prior.slope
    value = _posterior(samples, prior, b0, b1)
    for _ in range(STEPS):
        (g0, g1), (h00, h01, h11) = _slopes(samples, prior, b0, b1)
        size = h00 * h11 - h01 * h01
        d0, d1 = (h11 * g0 - h01 * g1) / size, (h00 * g1 - h01 * g0) / size
        part = 1.0
        while (there := _posterior(samples, prior, b0 + part * d0, b1 + part * d1)) < value and part > LEAST_PART:
            part /= 2
        if there < value:
            break
        b0, b1, value = b0 + part * d0, b1 + part * d1, there
        if abs(d0) + abs(d1) < CLOSE:
            break
    _, (h00, h01, h11) = _slopes(samples, prior, b0, b1)
    size = h00 * h11 - h01 * h01
    return Boundary(b0, b1, h11 / size, -h01 / size, h00 / size)


def _posterior(samples: Sequence[Sample], prior: Prior, b0: float, b1: float) -> float:
    """The log posterior, less a constant."""
    value = prior.intercept_precision * (b0 - prior.intercept) ** 2 + prior.slope_precision * (b1 - prior.slope) ** 2
    value *= -0.5
    for score, right, weight in samples:
        logit = b0 + b1 * score
        against = -logit if right else logit
        value -= weight * (log1p(exp(-abs(against))) + max(0.0, against))
    return value


def _slopes(samples: Sequence[Sample], prior: Prior, b0: float, b1: float) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """The gradient of the log posterior, and its Hessian with the sign turned round."""
    g0 = prior.intercept_precision * (prior.intercept - b0)
    g1 = prior.slope_precision * (prior.slope - b1)
    h00, h01, h11 = prior.intercept_precision, 0.0, prior.slope_precision
    for score, right, weight in samples:
        chance = sigmoid(b0 + b1 * score)
        off, bend = weight * (right - chance), weight * chance * (1 - chance)
        g0 += off
        g1 += off * score
        h00 += bend
        h01 += bend * score
        h11 += bend * score * score
    return (g0, g1), (h00, h01, h11)
