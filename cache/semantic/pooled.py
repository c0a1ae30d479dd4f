"""What all answers of a partition teach together: the chance that the nearest kept answer is right, from how its neighbours lie.

A single answer is asked for too rarely to learn a boundary of its own from nothing. Yet where the nearest question stands among its
neighbours says much, and says it for all answers alike: when seven of the eight nearest questions have the same answer as the nearest
and the first other answer is far, the nearest answer is right far more often than its similarity tells. This module fits that by a
logistic regression over a partition's newest observations; `cache.semantic.boundary` corrects it for single answers.

numpy comes with the extra `semantic`; this module loads only where the semantic cache is on.
"""

import re
from collections import deque
from collections.abc import Sequence
from math import exp, log, log1p
from typing import NamedTuple

import numpy as np

from cache.semantic.groups import AnswerGroup
from cache.semantic.ports import Neighbour

NEAR = 8
"""Neighbours that features are made of; fewer are a partition too small to judge."""
STEEP = 10.0
"""How fast a neighbour's vote falls with its similarity; 5 and 20 gave as many hits on the tuning halves of `bench/cache`."""
READ = 2_000
FIRM, DOUBT = 2.0, 0.3
KEPT = 4096
"""Observations of a partition that count, the newest."""
LEAST = 100
"""Observations (with their weights) below which nothing is fitted."""
RIDGE = 0.5
"""Precision of the prior around 0 of each standardised feature's weight: half an observation's worth."""
RIDGE_CONSTANT = 0.01
STEPS = 25
CLOSE = 1e-6
REFIT_SHARE = 0.05
REFIT_LEAST = 16
"""A new fit is made when so many observations are new: this many and this share of those there are."""

_word = re.compile(r"\w+")

Features = tuple[float, ...]
WIDTH = 10


def features(asked: str, near: Sequence[Neighbour], groups: Sequence[AnswerGroup | None], chosen: int) -> Features:
    """What is known of one neighbour's answer before anybody answers; `near` and their groups nearest first, `NEAR` of them.

    - a constant;
    - the similarity of the nearest question with this answer;
    - the gap from there to the nearest question with another answer, or to the last one where all have this one;
    - the share of the neighbours that have this answer;
    - how much larger their share of all similarity is than their share in number;
    - 1 where no neighbour has another answer;
    - ln(1 + questions known to have this answer);
    - the share of the asked question's words that some neighbour with this answer has: a word that none of them has may ask for more;
    - ln(words of the asked question), as a short question leaves less to differ;
    - the log odds of right and wrong among this answer's own observations, with `FIRM` right ones and `DOUBT` wrong ones put in.
    """
    own = groups[chosen]
    same = [place == chosen or (group is own and own is not None) for place, group in enumerate(groups)]
    similarities = [neighbour.similarity for neighbour in near]
    mine = [similarity for similarity, member in zip(similarities, same, strict=True) if member]
    others = [similarity for similarity, member in zip(similarities, same, strict=True) if not member]
    share = len(mine) / len(same)
    words = words_of(asked)
    known = {word for neighbour, member in zip(near, same, strict=True) if member for word in words_of(neighbour.question.text)}
    right, wrong = (own.right, own.wrong) if own is not None else (0.0, 0.0)
    return (
        1.0,
        mine[0],
        mine[0] - (others[0] if others else similarities[-1]),
        share,
        sum(mine) / (sum(similarities) or 1.0) - share,
        0.0 if others else 1.0,
        log1p(own.size if own is not None else 0),
        len(words & known) / max(1, len(words)),
        log1p(len(words)),
        log((right + FIRM) / (wrong + DOUBT)),
    )


def words_of(text: str) -> set[str]:
    """The different words among the first `READ` characters."""
    return set(_word.findall(text[:READ].casefold()))


def candidates(near: Sequence[Neighbour], groups: Sequence[AnswerGroup | None]) -> list[int]:
    """The neighbours that have the answer which most of the neighbourhood has, nearest first: a vote in which a neighbour's weight falls
    to 1/e for every 1/`STEEP` of similarity."""
    # a neighbour whose group is not known stands for itself
    names: list[object] = [place if group is None else group for place, group in enumerate(groups)]
    votes: dict[object, float] = {}
    for name, neighbour in zip(names, near, strict=True):
        votes[name] = votes.get(name, 0.0) + exp(STEEP * (neighbour.similarity - near[0].similarity))
    best = max(votes, key=lambda name: votes[name])
    return [place for place, name in enumerate(names) if name is best]


class Outcome(NamedTuple):
    """One observation of a partition."""

    at: float
    """Seconds of the wall clock."""
    features: Features
    shift: float
    """By how much the answer's own boundary moved the score when it was decided."""
    right: bool
    stands_for: float
    """How many requests it stands for: an audit for all would-be hits of which it was drawn."""


class Weighed(NamedTuple):
    """An observation as it looks under the newest fit."""

    score: float
    right: bool
    weight: float
    """0.5 ** (age / half-life), times the requests that it stands for."""


class PooledBoundary:
    """The regression of one partition.

    Args:
        half_life_s: seconds after which an observation counts half.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._outcomes: deque[Outcome] = deque(maxlen=KEPT)
        self._fresh = 0
        self._fitted_at = 0.0
        self._weights: Features | None = None
        """By feature, not standardised; None while too little is known."""

    def score(self, of: Features) -> float | None:
        """The log odds that the nearest answer is right; None while too little is known."""
        if self._weights is None:
            return None
        return sum(weight * value for weight, value in zip(self._weights, of, strict=True))

    def observe(self, outcome: Outcome) -> None:
        """Keep an observation; `refit` makes something of it."""
        self._outcomes.append(outcome)
        self._fresh += 1

    def due(self, now: float) -> bool:
        """Whether a new fit would say something new: enough is new, or the old has lost weight since."""
        known = len(self._outcomes)
        aged = self._weights is not None and now - self._fitted_at > self._half_life_s / 8
        return known >= LEAST and (aged or self._weights is None or self._fresh >= REFIT_LEAST + REFIT_SHARE * known)

    def refit(self, now: float) -> list[Weighed]:
        """Fit at once, and give all observations as the new fit sees them; none where too few still count."""
        fit = self.begin_fit(now)
        fit.work()
        self.take(fit)
        return fit.weighed

    def begin_fit(self, now: float) -> "PooledFit":
        """A new fit of what is known now."""
        self._fresh, self._fitted_at = 0, now
        return PooledFit(tuple(self._outcomes), now, self._half_life_s)

    def take(self, fit: "PooledFit") -> None:
        """Use a fit that has been worked out."""
        self._weights = fit.weights


class PooledFit:
    """One fit of a partition's observations, by itself: a thread may work it out while the partition goes on.

    Args:
        outcomes: up to `KEPT` observations.
        now: seconds of the wall clock.
        half_life_s: seconds after which an observation counts half.
    """

    def __init__(self, outcomes: Sequence[Outcome], now: float, half_life_s: float) -> None:
        self._seen = outcomes
        self._now = now
        self._half_life_s = half_life_s
        self.weights: Features | None = None
        """By feature, not standardised; None where too few observations still count."""
        self.weighed: list[Weighed] = []
        """All observations as this fit sees them."""

    def work(self) -> None:
        """Fit the weights (Newton with a ridge). Some 15 ms for 4,096 observations."""
        ages = np.array([max(0.0, self._now - outcome.at) for outcome in self._seen])
        counts = 0.5 ** (ages / self._half_life_s)
        if counts.sum() < LEAST:
            return
        table = np.array([outcome.features for outcome in self._seen])
        right = np.array([outcome.right for outcome in self._seen], dtype=float)
        middle, spread = table.mean(axis=0), table.std(axis=0) + 1e-6
        middle[0], spread[0] = 0.0, 1.0
        table = (table - middle) / spread
        stands_for = np.array([outcome.stands_for for outcome in self._seen])
        ridge = np.full(table.shape[1], RIDGE)
        ridge[0] = RIDGE_CONSTANT
        weights = np.zeros(table.shape[1])
        for _ in range(STEPS):
            chance = 1 / (1 + np.exp(-np.clip(table @ weights, -30, 30)))
            bend = (table * (counts * chance * (1 - chance))[:, None]).T @ table + np.diag(ridge)
            step = np.linalg.solve(bend, table.T @ (counts * (right - chance)) - ridge * weights)
            # a longer step overshoots where the classes are nearly separate
            weights += step * min(1.0, 4 / max(float(np.abs(step).max()), 1e-12))
            if float(np.abs(step).max()) < CLOSE:
                break
        scores = table @ weights + np.array([outcome.shift for outcome in self._seen])
        plain = weights / spread
        plain[0] -= float((weights * middle / spread).sum())
        self.weights = tuple(float(weight) for weight in plain)
        self.weighed = [
            Weighed(float(s), outcome.right, float(c)) for s, outcome, c in zip(scores, self._seen, counts * stands_for, strict=True)
        ]
