"""The lines of `bench.cache`: what each is called and how it is set up, its figures, and whether they meet the goals."""

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import NamedTuple

from bench.cache.course import Came, Setup
from bench.cache.intervals import wilson
from bench.cache.paper import PaperDecider
from cache.semantic.control import DELTA_HIT
from cache.semantic.decision import ThresholdDecider
from cache.semantic.never_words import DEFAULT_PERSONAL, DEFAULT_TIME, NeverWords, text_refusal
from cache.semantic.verified import VerifiedDecider

THRESHOLDS = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
NOISES = (0.0, 0.02, 0.05)
LEAST_HITS = 300
TIMES_STATIC = 3.0
LEAST_SHARE = 0.05
ANY = 0.01
"""A threshold that every neighbour is over: the guard alone decides."""

_never = NeverWords(DEFAULT_TIME, DEFAULT_PERSONAL)


def refuses(text: str) -> str:
    """The default eligibility of a text."""
    return text_refusal(text, _never)


def _threshold(threshold: float) -> Callable[[], ThresholdDecider]:
    return partial(ThresholdDecider, threshold)


def static_lines() -> dict[str, Setup]:
    """Exact answers alone, thresholds without and with the guard, and the guard alone."""
    lines = {"exact only": Setup(None)}
    for threshold in THRESHOLDS:
        lines[f"threshold {threshold:.2f}"] = Setup(_threshold(threshold))
    for threshold in THRESHOLDS:
        lines[f"guard + threshold {threshold:.2f}"] = Setup(_threshold(threshold), guard=True)
    lines["guard alone"] = Setup(_threshold(ANY), guard=True)
    return lines


def learned_lines() -> dict[str, Setup]:
    """The decisions that learn: the paper's, and ours with and without the guard, wrong labels and eligibility."""
    lines = {"the paper's, per entry": Setup(lambda: PaperDecider(DELTA_HIT), keeps_agreeing=False)}
    for guard in (False, True):
        for noise in NOISES:
            lines[_verified(guard, noise, False)] = Setup(VerifiedDecider, guard=guard, noise=noise)
    for noise in NOISES:
        lines[_verified(True, noise, True)] = Setup(VerifiedDecider, guard=True, noise=noise, refuses=refuses)
    return lines


def _verified(guard: bool, noise: float, eligible: bool) -> str:
    words = ["verified"]
    if not guard:
        words.append("without guard")
    if eligible:
        words.append("eligible texts only")
    if noise:
        words.append(f"{noise:.0%} of labels wrong")
    return ", ".join(words)


class Judged(NamedTuple):
    """Figures of a line on one half of a set."""

    came: Came
    share: float
    """Hits over stated repeats."""
    wrong: float
    """Wrong answers per hit."""
    lower: float
    upper: float
    """Wilson's 95 % bounds of it."""

    @property
    def allowed(self) -> float:
        """Wrong answers per hit that the goal allows: delta_hit and 3 standard errors of a share of delta_hit among so many hits."""
        return DELTA_HIT + 3 * sqrt(DELTA_HIT * (1 - DELTA_HIT) / max(1, self.came.hits))

    @property
    def error(self) -> str:
        """Whether the goal of wrong answers is met: `met`, `missed` or `too few`."""
        if self.came.hits < LEAST_HITS:
            return "too few"
        return "met" if self.upper <= self.allowed else "missed"


def judged(came: Came) -> Judged:
    """The figures of what came."""
    lower, upper = wilson(came.wrong, came.hits)
    return Judged(came, came.hits / max(1, came.repeats), came.wrong / max(1, came.hits), lower, upper)


def best_static(tuned: dict[str, Judged]) -> str | None:
    """The static line with the most hits among those that meet the goal of wrong answers on the tuning half; None where none does."""
    meeting = [name for name in static_lines() if name in tuned and tuned[name].error == "met"]
    return max(meeting, key=lambda name: tuned[name].came.hits, default=None)


def hits_goal(line: Judged, static: Judged | None) -> str:
    """Whether a line has enough hits beside the best static one, or, where there is none, at all."""
    if static is not None:
        times = line.came.hits / max(1, static.came.hits)
        return f"{'met' if times >= TIMES_STATIC else 'missed'} ({times:.1f} x static)"
    return f"{'met' if line.share >= LEAST_SHARE else 'missed'} ({line.share:.1%} of repeats)"
