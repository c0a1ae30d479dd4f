"""The decision as the paper has it, beside ours: every entry learns alone, from the similarity alone, bounded per request.

Written from the paper (Schroeder et al., "vCache", 2025): an entry with fewer than 6 observations, or with one class of them, explores.
Else P(right | s) = sigmoid(g (s - t)) is fitted; t' = t + z(1 - eps) sd(t); alpha = (1 - eps) sigmoid(g (s - t')); tau is the least of
1 - delta / (1 - alpha) over 50 values of eps; a draw up to tau explores. sd(t) comes from the inverse Hessian by the delta method, with
the gradient (-1/g, b0/g^2), or, where the classes are separate, from a table by the number of observations. So that wrong answers per hit
can be compared, delta is delta_hit times the hit rate, set anew every 360 requests.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cache
from math import sqrt
from random import Random
from statistics import NormalDist, pstdev

from cache.semantic.boundary import Prior, Sample, fit, sigmoid
from cache.semantic.decision import Decision, Guard
from cache.semantic.ports import Neighbour

LEAST = 6
CAP = 64
EVERY = 360
LEAST_RATE = 0.01
"""The hit rate that is assumed at least: with 0 hits delta would be 0 and stay there."""
WEAK = Prior(0.0, 0.0, 1e-3, 1e-5)
EPSILONS = tuple(step / 51 for step in range(1, 51))
_normal = NormalDist()
_QUANTILES = tuple((epsilon, _normal.inv_cdf(1 - epsilon)) for epsilon in EPSILONS)


@cache
def separable_deviation(observations: int, draws: int = 2000, seed: int = 1) -> float:
    """How far the middle between two separate classes lies from the true boundary: the standard deviation over `draws` simulations.

    Each draws a boundary and `observations` similarities evenly from 0 to 1, and counts where both classes came up. Repeatable: the same
    arguments give the same figure. The entry of the paper's table for a number of observations.
    """
    chance = Random(f"{seed} {observations}")
    misses: list[float] = []
    while len(misses) < draws:
        boundary = chance.random()
        seen = [chance.random() for _ in range(observations)]
        below, above = [s for s in seen if s < boundary], [s for s in seen if s >= boundary]
        if below and above:
            misses.append((max(below) + min(above)) / 2 - boundary)
    return pstdev(misses)


def paper_tau(similarity: float, seen: Sequence[Sample], delta: float) -> float:
    """The share of requests at this similarity that has to be explored, 0 to 1."""
    line = fit(seen, WEAK)
    slope = max(line.slope, 1e-3)
    place = min(1.0, max(0.0, -line.intercept / slope))
    if max(s.score for s in seen if not s.right) < min(s.score for s in seen if s.right):
        deviation = separable_deviation(len(seen))
    else:
        by_intercept, by_slope = -1 / slope, line.intercept / slope**2
        spread = by_intercept**2 * line.var_intercept + 2 * by_intercept * by_slope * line.covariance + by_slope**2 * line.var_slope
        deviation = sqrt(max(0.0, spread))
    least = 1.0
    for epsilon, quantile in _QUANTILES:
        alpha = (1 - epsilon) * sigmoid(slope * (similarity - place - quantile * deviation))
        least = min(least, max(0.0, 1 - delta / (1 - alpha)))
    return least


class PaperDecider:
    """The paper's decision, with wrong answers per hit held to `delta_hit` through the hit rate."""

    def __init__(self, delta_hit: float) -> None:
        self._delta_hit, self._delta = delta_hit, delta_hit
        self._seen: dict[bytes, deque[Sample]] = defaultdict(lambda: deque(maxlen=CAP))
        self._asked = self._hits = 0

    def decide(self, partition: bytes, asked: str, near: Sequence[Neighbour], draw: float, now: float, guard: Guard) -> Decision:
        self._asked += 1
        if self._asked % EVERY == 0:
            self._delta = self._delta_hit * max(LEAST_RATE, self._hits / EVERY)
            self._hits = 0
        if not near:
            return Decision(exploit=False, reason="none")
        nearest = near[0]
        if guard(nearest, False):
            return Decision(exploit=False, reason="guard", neighbour=nearest)
        seen = self._seen[nearest.question.key]
        if len(seen) >= LEAST and len({sample.right for sample in seen}) == 2 and draw > paper_tau(nearest.similarity, seen, self._delta):
            self._hits += 1
            return Decision(exploit=True, reason="sure", neighbour=nearest)
        return Decision(exploit=False, reason="unsure", neighbour=nearest, compare=(nearest,), features=(nearest.similarity,))

    def observe(self, partition: bytes, decision: Decision, labels: Sequence[bool | None], added: bytes, now: float) -> None:
        if labels and labels[0] is not None and decision.neighbour is not None and decision.features:
            self._seen[decision.neighbour.question.key].append(Sample(decision.features[0], labels[0]))

    def forget(self, partition: bytes, key: bytes) -> None:
        self._seen.pop(key, None)
