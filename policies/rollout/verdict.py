"""Judges whether a canary is worse than the baseline, good enough (non-inferior), or undecided; may be called at every interval.

`judge` does so; `policies/rollout/progress.py` decides what follows from it (rollback, next phase).

Each metric has a confidence interval of its difference, which holds for all looks together. Worse: the whole interval lies
beyond the margin. Good enough: all of it lies within. The chance of a wrong "worse" in any metric at any time is at most `alpha`, that of a
wrong "good enough" likewise: alpha is divided among the metrics (union bound). The interval of the difference of two shares is computed
from their bounds by MOVER (Zou and Donner, "Construction of confidence intervals about effect measures", 2008; with Wilson's interval it is
Newcombe's 1998): the distances of two bounds from their values, root of the sum of squares.

No test of these counts can tell whether callers differ. When few end users make up the traffic, sticky assignment may give the canary other
kinds of requests than the baseline for the whole rollout. Margins absorb some of it, and each larger share mixes the users more.

`mean_radius` and `share_low` are the anytime-valid confidence bounds, which hold at all looks at once, whenever one stops. Both are mixture
sequential tests (mSPRT: Robbins, "Statistical methods related to the law of the iterated logarithm", 1970; Johari, Pekelis, Walsh, "Always
valid inference", 2015) turned into bounds: the likelihood of the observations averaged over a prior, divided by their likelihood at a
value, is a martingale if that value is the true one, so by Ville's inequality the ratio ever exceeds 1/alpha with probability alpha at
most. The bounds enclose the values at which the ratio does not exceed 1/alpha.
"""

from collections.abc import Mapping
from enum import Enum
from math import exp, expm1, hypot, inf, lgamma, log, log1p, sqrt
from types import MappingProxyType
from typing import Final

import msgspec

from policies.rollout.evidence import WANDER_S, Evidence, RatioEvidence, ShareEvidence
from policies.rollout.samples import METRICS, Metric, Scale, Worse

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


TIGHT_AT: Final = 200.0
"""Requests (weights, see `evidence`) at which bounds of ratios are tightest: about as many as reveal a fifth more inter-token latency."""

DEFAULT_MARGINS: Final[Mapping[str, float]] = MappingProxyType(
    {name: metric.margin for name, metric in METRICS.items() if metric.by_default}
)


class Judgement(Enum):
    """The judgement of one metric, or of all metrics together."""

    WORSE = "worse"
    GOOD_ENOUGH = "good enough"
    UNDECIDED = "undecided"


class ComparisonTerms(msgspec.Struct, frozen=True):
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


class MetricFinding(msgspec.Struct, frozen=True):
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
        return f"{metric.words} {values}: {size} (confidence {100 * (1 - self.alpha):g} %), after {self.requests:,} requests"


class Verdict(msgspec.Struct, frozen=True):
    """The judgement of all metrics together, and the findings behind it, the worst first."""

    judgement: Judgement
    findings: tuple[MetricFinding, ...]
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


def judge(terms: ComparisonTerms, evidence: Evidence) -> Verdict:
    """The verdict of the evidence so far.

    Metrics without samples of either arm (no streams, no costs) are left out. One that a rollout has to ask for is not: what was asked for
    is waited for.
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
        elif not metric.by_default:
            findings.append(MetricFinding(name, Judgement.UNDECIDED, 0, 0.0, 0.0, -1.0, inf, terms.alpha))
    findings.sort(key=lambda finding: _ORDER[finding.judgement])
    return Verdict(findings[0].judgement if findings else Judgement.UNDECIDED, tuple(findings), evidence.requests)


def _of_ratio(metric: Metric, margin: float, alpha: float, terms: ComparisonTerms, evidence: RatioEvidence) -> MetricFinding:
    variance, blocks = evidence.scatter(_lasting_variance(metric, terms))
    radius = mean_radius(variance, evidence.weight, blocks, alpha, TIGHT_AT) if blocks and evidence.canary_n >= terms.min_samples else inf
    low = evidence.difference - radius
    high = min(evidence.difference + radius, _MAX_LOG)
    judgement = _judged(low, high, log1p(margin), metric.worse)
    canary = exp(evidence.canary / evidence.weight)
    baseline = exp(evidence.baseline / evidence.weight)
    relative_high = expm1(high) if radius < inf else inf
    return MetricFinding(metric.name, judgement, evidence.canary_n, canary, baseline, expm1(low), relative_high, terms.alpha)


def _of_share(metric: Metric, margin: float, alpha: float, terms: ComparisonTerms, evidence: ShareEvidence) -> MetricFinding:
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
    return MetricFinding(metric.name, judgement, evidence.canary_n, canary, baseline, low, high, terms.alpha)


def _lasting_variance(metric: Metric, terms: ComparisonTerms) -> float:
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
