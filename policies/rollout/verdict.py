"""Judges whether a canary is worse than the baseline, good enough (non-inferior), or undecided; may be called at every interval.

Each metric has a confidence interval of its difference, which holds for all looks together (`bounds`, formulas and sources).
Worse: the whole interval lies beyond the margin. Good enough: all of it lies within. The chance of a wrong "worse" in any metric at
any time is at most `alpha`, that of a wrong "good enough" likewise: alpha is divided among the metrics (union bound).
The interval of the difference of two shares is computed from their bounds by MOVER (Zou and Donner, "Construction of confidence
intervals about effect measures", 2008; with Wilson's interval it is Newcombe's 1998): the distances of two bounds from their values, root
of the sum of squares.

No test of these counts can tell whether callers differ. When few end users make up the traffic, sticky assignment may give the canary
other kinds of requests than the baseline for the whole rollout. Margins absorb some of it, and each larger share mixes the users more.
"""

from collections.abc import Mapping
from enum import Enum
from math import exp, expm1, hypot, inf, log1p
from types import MappingProxyType
from typing import Final

import msgspec

from policies.rollout.bounds import mean_radius, share_low
from policies.rollout.evidence import WANDER_S, Evidence, RatioEvidence, ShareEvidence
from policies.rollout.samples import METRICS, Metric, Scale, Worse

TIGHT_AT: Final = 200.0
"""Requests (weights, see `evidence`) at which bounds of ratios are tightest: about as many as reveal a fifth more inter-token latency."""

DEFAULT_MARGINS: Final[Mapping[str, float]] = MappingProxyType({name: metric.margin for name, metric in METRICS.items()})


class Judgement(Enum):
    """The judgement of one metric, or of all metrics together."""

    WORSE = "worse"
    GOOD_ENOUGH = "good enough"
    UNDECIDED = "undecided"


class Terms(msgspec.Struct, frozen=True):
    """The terms of the comparison: metrics, margins and error rate.

    Raises:
        ValueError: for an unknown metric, a margin or an alpha out of range.
    """

    alpha: float = 0.01
    """The chance that a canary that is no worse than the margins is judged worse, over all metrics and looks."""
    margins: dict[str, float] = msgspec.field(default_factory=lambda: dict(DEFAULT_MARGINS))
    """Margins by metric (`samples.METRICS`), in the metric's units."""
    interval_s: float = 10.0
    """Length of the intervals that samples are counted in (`samples`), in seconds."""
    min_samples: int = 50
    """Samples of the canary that a metric needs to be judged at all."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 0.2:
            raise ValueError(f"alpha is {self.alpha}; it has to be above 0 and at most 0.2")
        if not 1 <= self.interval_s <= WANDER_S:
            raise ValueError(f"interval_s is {self.interval_s:g}; it has to be 1 to {WANDER_S:g} seconds")
        if self.min_samples < 1:
            raise ValueError(f"min_samples is {self.min_samples}; it has to be at least 1")
        if not self.margins:
            raise ValueError("margins names no metric; name at least one of " + ", ".join(METRICS))
        for name, margin in self.margins.items():
            if name not in METRICS:
                raise ValueError(f"there is no metric {name!r}; there are " + ", ".join(METRICS))
            maximum = 1.0 if METRICS[name].scale is Scale.SHARE else 10.0
            if not 0 < margin < maximum:
                raise ValueError(f"the margin of {name} is {margin}; it has to be above 0 and below {maximum:g}")


class Finding(msgspec.Struct, frozen=True):
    """The finding on one metric."""

    metric: str
    judgement: Judgement
    requests: int
    """Number of samples of the canary."""
    canary: float
    """Share, or geometric mean in the unit of the samples; over the same intervals as the baseline's, weighted alike."""
    baseline: float
    low: float
    """Lower bound of the difference: of shares, or relative to the baseline's value."""
    high: float
    """Upper bound of the difference; infinite while there are too few samples."""
    alpha: float
    """Error rate of all metrics together."""

    @property
    def words(self) -> str:
        """Both values, the bound and the samples: "inter-token latency 13.1 ms against 10.0 ms: at least 22.4 % worse, …"."""
        metric = METRICS[self.metric]
        low = 100 * self.low
        high = 100 * self.high
        if metric.scale is Scale.SHARE:
            unit = " points"
            values = f"{100 * self.canary:.2g} % against {100 * self.baseline:.2g} %"
        else:
            unit = " %"
            values = " against ".join([_figure(value * metric.per_unit) + metric.unit for value in (self.canary, self.baseline)])
        more, less = ("worse", "better") if metric.worse is Worse.UP else ("more", "less")
        if self.judgement is Judgement.WORSE:
            size = f"at least {_figure(low)}{unit} {more}" if low > 0 else f"at least {_figure(-high)}{unit} {less}"
        elif high == inf:
            return f"{metric.words} {values}: too early to say, after {self.requests:,} requests"
        else:
            sides = [f"{_figure(abs(bound))}{unit} {more if bound > 0 else less}" for bound in (low, high)]
            size = f"between {sides[0]} and {sides[1]}"
        return f"{metric.words} {values}: {size}, {100 * (1 - self.alpha):g} %, after {self.requests:,} requests"


class Verdict(msgspec.Struct, frozen=True):
    """The judgement of all metrics together, and the findings behind it, the worst first."""

    judgement: Judgement
    findings: tuple[Finding, ...]
    requests: int
    """Requests of the canary that were counted."""

    @property
    def words(self) -> str:
        """The findings that decided the judgement, as text; the undecided ones for an undecided judgement."""
        deciding = [finding.words for finding in self.findings if finding.judgement is self.judgement]
        return "; ".join(deciding) or "nothing was measured yet"


_MAX_LOG: Final = 700.0
"""The logarithm of a large number that a float can still hold."""
_ORDER: Final = {Judgement.WORSE: 0, Judgement.UNDECIDED: 1, Judgement.GOOD_ENOUGH: 2}


def judge(terms: Terms, evidence: Evidence) -> Verdict:
    """The verdict of the evidence so far.

    Metrics without samples of either arm (no streams, no costs) are left out.
    """
    findings = []
    for name, margin in terms.margins.items():
        metric = METRICS[name]
        alpha = terms.alpha / len(terms.margins)
        alpha = alpha / 2 if metric.worse is Worse.EITHER else alpha  # such a metric has two ways to be wrong
        ratio = evidence.ratios.get(name)
        share = evidence.shares.get(name)
        if ratio is not None and ratio.weight:
            findings.append(_of_ratio(metric, margin, alpha, terms, ratio))
        elif share is not None and share.canary_n:
            findings.append(_of_share(metric, margin, alpha, terms, share))
    findings.sort(key=lambda finding: _ORDER[finding.judgement])
    return Verdict(findings[0].judgement if findings else Judgement.UNDECIDED, tuple(findings), evidence.requests)


def _of_ratio(metric: Metric, margin: float, alpha: float, terms: Terms, evidence: RatioEvidence) -> Finding:
    variance, blocks = evidence.scatter(_lasting_variance(metric, terms))
    radius = mean_radius(variance, evidence.weight, blocks, alpha, TIGHT_AT) if blocks and evidence.canary_n >= terms.min_samples else inf
    low = evidence.difference - radius
    high = min(evidence.difference + radius, _MAX_LOG)
    judgement = _judged(low, high, log1p(margin), metric.worse)
    canary = exp(evidence.canary / evidence.weight)
    baseline = exp(evidence.baseline / evidence.weight)
    relative_high = expm1(high) if radius < inf else inf
    return Finding(metric.name, judgement, evidence.canary_n, canary, baseline, expm1(low), relative_high, terms.alpha)


def _of_share(metric: Metric, margin: float, alpha: float, terms: Terms, evidence: ShareEvidence) -> Finding:
    canary = evidence.hits / evidence.canary_n
    baseline = evidence.expected / evidence.canary_n
    low = -1.0
    high = inf
    if evidence.canary_n >= terms.min_samples:
        n, m = evidence.effective_samples(_lasting_variance(metric, terms))
        canary_low = share_low(canary * n, n, alpha)
        canary_high = 1 - share_low((1 - canary) * n, n, alpha)
        baseline_low = share_low(baseline * m, m, alpha)
        baseline_high = 1 - share_low((1 - baseline) * m, m, alpha)
        low = canary - baseline - hypot(canary - canary_low, baseline_high - baseline)
        high = canary - baseline + hypot(canary_high - canary, baseline - baseline_low)
    judgement = _judged(low, high, margin, metric.worse)
    return Finding(metric.name, judgement, evidence.canary_n, canary, baseline, low, high, terms.alpha)


def _lasting_variance(metric: Metric, terms: Terms) -> float:
    return metric.wander**2 * WANDER_S / terms.interval_s


def _judged(low: float, high: float, margin: float, worse: Worse) -> Judgement:
    if low > margin or (worse is Worse.EITHER and high < -margin):
        return Judgement.WORSE
    if high < margin and (worse is Worse.UP or low > -margin):
        return Judgement.GOOD_ENOUGH
    return Judgement.UNDECIDED


def _figure(value: float) -> str:
    """Three digits, without exponents; whole from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:#.3g}".rstrip(".")
