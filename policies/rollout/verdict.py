"""Whether a canary is worse than the baseline, good enough, or not decided yet; may be asked at every interval.

Per metric there is an interval of differences that are still possible, which holds for all looks together (`bounds`, formulas and sources).
Worse: all of it lies beyond the margin. Good enough: all of it lies within. The chance of a wrong "worse" in any metric at
any time is at most `alpha`, that of a wrong "good enough" likewise: each metric gets its part of both (union bound).
The differences of two shares come from their bounds by MOVER (Zou and Donner, "Construction of confidence intervals about effect
measures", 2008; with Wilson's interval it is Newcombe's 1998): the distances of two bounds from their values, root of squares.

What no test of these counts can see: whether callers differ. Where few end users make up the traffic and stick, the canary's may ask for
other things than the baseline's for as long as the rollout lasts. Margins bear some of it, and each larger share mixes them more.
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
"""Requests (weights, see `evidence`) at which bounds of ratios are tightest: about where a fifth more inter-token latency is found."""

DEFAULT_MARGINS: Final[Mapping[str, float]] = MappingProxyType({name: metric.margin for name, metric in METRICS.items()})


class Judgement(Enum):
    """Of one metric, or of all."""

    WORSE = "worse"
    GOOD_ENOUGH = "good enough"
    UNDECIDED = "undecided"


class Terms(msgspec.Struct, frozen=True):
    """What is compared, and how sure one wants to be.

    Raises:
        ValueError: for an unknown metric, a margin or an alpha out of range.
    """

    alpha: float = 0.01
    """The chance that a rollout whose canary is no worse than the margins is taken for worse, over all metrics and looks."""
    margins: dict[str, float] = msgspec.field(default_factory=lambda: dict(DEFAULT_MARGINS))
    """By metric (`samples.METRICS`), in its units."""
    interval_s: float = 10.0
    """Length of the intervals that samples are counted in (`samples`)."""
    min_samples: int = 50
    """Of the canary, before a metric is judged at all."""

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
            most = 1.0 if METRICS[name].scale is Scale.SHARE else 10.0
            if not 0 < margin < most:
                raise ValueError(f"the margin of {name} is {margin}; it has to be above 0 and below {most:g}")


class Finding(msgspec.Struct, frozen=True):
    """One metric."""

    metric: str
    judgement: Judgement
    requests: int
    """Samples of the canary."""
    canary: float
    """Share, or geometric mean in the unit of what was observed; over the same intervals as the baseline's, weighted alike."""
    baseline: float
    low: float
    """Least difference that is still possible: of shares, or of values as part of the baseline's."""
    high: float
    """The greatest; infinite while it is too early to say."""
    alpha: float
    """Of all metrics together."""

    @property
    def words(self) -> str:
        """Both values, the bound and the samples: "inter-token latency 13.1 ms against 10.0 ms: at least 22.4 % worse, …"."""
        metric, low, high = METRICS[self.metric], 100 * self.low, 100 * self.high
        if metric.scale is Scale.SHARE:
            of, shown = " points", f"{100 * self.canary:.2g} % against {100 * self.baseline:.2g} %"
        else:
            of, values = " %", [_figure(value * metric.per_unit) + metric.unit for value in (self.canary, self.baseline)]
            shown = " against ".join(values)
        more, less = ("worse", "better") if metric.worse is Worse.UP else ("more", "less")
        if self.judgement is Judgement.WORSE:
            size = f"at least {_figure(low)}{of} {more}" if low > 0 else f"at least {_figure(-high)}{of} {less}"
        elif high == inf:
            return f"{metric.words} {shown}: too early to say, after {self.requests:,} requests"
        else:
            sides = [f"{_figure(abs(bound))}{of} {more if bound > 0 else less}" for bound in (low, high)]
            size = f"between {sides[0]} and {sides[1]}"
        return f"{metric.words} {shown}: {size}, {100 * (1 - self.alpha):g} %, after {self.requests:,} requests"


class Verdict(msgspec.Struct, frozen=True):
    """All metrics; the worst first."""

    judgement: Judgement
    findings: tuple[Finding, ...]
    requests: int
    """The canary's that were counted."""

    @property
    def words(self) -> str:
        """What decided; what is undecided, where nothing is."""
        deciding = [finding.words for finding in self.findings if finding.judgement is self.judgement]
        return "; ".join(deciding) or "nothing was measured yet"


_MOST: Final = 700.0
"""A logarithm that is still one of a float."""
_ORDER: Final = {Judgement.WORSE: 0, Judgement.UNDECIDED: 1, Judgement.GOOD_ENOUGH: 2}


def judge(terms: Terms, evidence: Evidence) -> Verdict:
    """What the evidence says by now.

    Metrics that neither arm has a sample of (no streams, no costs) count for nothing.
    """
    findings = []
    for name, margin in terms.margins.items():
        metric, part = METRICS[name], terms.alpha / len(terms.margins)
        part = part / 2 if metric.worse is Worse.EITHER else part  # such a metric has two ways to be wrong
        ratio, share = evidence.ratios.get(name), evidence.shares.get(name)
        if ratio is not None and ratio.weight:
            findings.append(_of_ratio(metric, margin, part, terms, ratio))
        elif share is not None and share.canary_n:
            findings.append(_of_share(metric, margin, part, terms, share))
    findings.sort(key=lambda finding: _ORDER[finding.judgement])
    return Verdict(findings[0].judgement if findings else Judgement.UNDECIDED, tuple(findings), evidence.requests)


def _of_ratio(metric: Metric, margin: float, part: float, terms: Terms, seen: RatioEvidence) -> Finding:
    variance, blocks = seen.scatter(_strays(metric, terms))
    radius = mean_radius(variance, seen.weight, blocks, part, TIGHT_AT) if blocks and seen.canary_n >= terms.min_samples else inf
    low, high, edge = seen.difference - radius, min(seen.difference + radius, _MOST), log1p(margin)
    judgement = _judged(low, high, edge, metric.worse)
    canary, baseline = exp(seen.canary / seen.weight), exp(seen.baseline / seen.weight)
    least, most = expm1(low), expm1(high) if radius < inf else inf
    return Finding(metric.name, judgement, seen.canary_n, canary, baseline, least, most, terms.alpha)


def _of_share(metric: Metric, margin: float, part: float, terms: Terms, seen: ShareEvidence) -> Finding:
    canary, baseline = seen.hits / seen.canary_n, seen.expected / seen.canary_n
    low, high = -1.0, inf
    if seen.canary_n >= terms.min_samples:
        n, m = seen.sure_as(_strays(metric, terms))
        canary_low, canary_high = share_low(canary * n, n, part), 1 - share_low((1 - canary) * n, n, part)
        baseline_low, baseline_high = share_low(baseline * m, m, part), 1 - share_low((1 - baseline) * m, m, part)
        low = canary - baseline - hypot(canary - canary_low, baseline_high - baseline)
        high = canary - baseline + hypot(canary_high - canary, baseline - baseline_low)
    judgement = _judged(low, high, margin, metric.worse)
    return Finding(metric.name, judgement, seen.canary_n, canary, baseline, low, high, terms.alpha)


def _strays(metric: Metric, terms: Terms) -> float:
    return metric.wander**2 * WANDER_S / terms.interval_s


def _judged(low: float, high: float, edge: float, worse: Worse) -> Judgement:
    if low > edge or (worse is Worse.EITHER and high < -edge):
        return Judgement.WORSE
    if high < edge and (worse is Worse.UP or low > -edge):
        return Judgement.GOOD_ENOUGH
    return Judgement.UNDECIDED


def _figure(value: float) -> str:
    """Three digits, without exponents; whole from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:#.3g}".rstrip(".")
