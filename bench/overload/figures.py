"""From samples to figures: what was served in time, by whom it was asked, and how long refusals took."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

from bench.overload.load import Sample
from bench.overload.plan import CLASSES, SLO_TTFT_S
from bench.results_file import percentile

STEADY_S = 5.0
"""Full goodput must last so long to count as back."""
FULL = 0.95
LATE_MS = 100.0
"""A refusal that took longer was no refusal at once: the request had been let wait."""


def good(one: Sample) -> bool:
    """Answered wholly, and begun in time."""
    return one.how == "ok" and one.ttft_s is not None and one.ttft_s <= SLO_TTFT_S


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if any(values) else 0.0


def share(of: Sequence[Sample], which: Sequence[Sample]) -> float:
    return len(of) / len(which) if which else float("nan")


def overall(samples: Sequence[Sample], seconds: float) -> dict[str, tuple[float, str]]:
    """Figures of one run, of requests that came in so many seconds: name to value and unit."""
    refusals = [1000 * took for one in samples for took in one.refusals_s]
    answered = [one for one in samples if one.how == "ok"]
    found: dict[str, tuple[float, str]] = {
        "offered_per_s": (len(samples) / seconds, "1/s"),
        "goodput_per_s": (sum(map(good, samples)) / seconds, "1/s"),
        "answered_per_s": (len(answered) / seconds, "1/s"),
        "refused_share": (share([one for one in samples if one.how == "refused"], samples), "share"),
        "left_share": (share([one for one in samples if one.how == "left"], samples), "share"),
        "broken_share": (share([one for one in samples if one.how not in ("ok", "refused", "left")], samples), "share"),
        "hit_rate": (sum(one.cached_tokens for one in answered) / max(1, sum(one.prompt_tokens for one in answered)), "share"),
        "jain": (jain(list(tokens_by_tenant(samples).values())), "index"),
        "late_p99_ms": (1000 * percentile([one.late_s for one in samples], 0.99), "ms"),
    }
    if refusals:
        found["refused_p50_ms"] = (percentile(refusals, 0.5), "ms")
        found["refused_p99_ms"] = (percentile(refusals, 0.99), "ms")
        found["refused_late_share"] = (sum(took > LATE_MS for took in refusals) / len(refusals), "share")
    for tier in CLASSES:
        of = [one for one in samples if one.tier == tier]
        first = [one.ttft_s for one in of if one.how == "ok" and one.ttft_s is not None]
        found[f"success_{tier}"] = (share([one for one in of if one.how == "ok"], of), "share")
        found[f"in_time_{tier}"] = (share([one for one in of if good(one)], of), "share")
        if first:
            found[f"ttft_p50_s_{tier}"] = (percentile(first, 0.5), "s")
            found[f"ttft_p99_s_{tier}"] = (percentile(first, 0.99), "s")
    return found


def tokens_by_tenant(samples: Sequence[Sample]) -> dict[int, float]:
    """What each tenant got: prompt and output tokens of its answers; tenants that got nothing count too."""
    got: dict[int, float] = defaultdict(float)
    for one in samples:
        got[one.tenant] += one.prompt_tokens + one.output_tokens if one.how == "ok" else 0
    return got


def by_second(samples: Sequence[Sample], seconds: float) -> list[float]:
    """Good answers by the second in which their request was due."""
    counts = [0.0] * int(seconds)
    for one in samples:
        if good(one) and one.at_s < len(counts):
            counts[int(one.at_s)] += 1
    return counts


def recovery_s(samples: Sequence[Sample], before: tuple[float, float], ended_s: float, until_s: float) -> float:
    """From the end of a trigger until requests are served as those before it were, for good; `until_s - ended_s` when they never are."""

    def served(begin: float, end: float) -> float:
        of = [one for one in samples if begin <= one.at_s < end]
        return mean(map(good, of)) if of else 1.0

    wanted = FULL * served(*before)
    at = until_s - STEADY_S
    if served(at, until_s) < wanted:
        return until_s - ended_s
    while at >= ended_s and served(at, at + STEADY_S) >= wanted:
        at -= 1.0
    return max(0.0, at + 1.0 - ended_s)
