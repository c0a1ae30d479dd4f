"""The plan of a rollout: its steps, the conditions for passing each, and the outcome of a step that times out undecided."""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

import msgspec

from policies.rollout.verdict import ComparisonTerms

DAY_S: Final = 86_400.0
MAX_STEPS: Final = 32


class StepNeeds(Enum):
    """The judgement of the canary that a step needs before it is passed."""

    NOT_WORSE = "not worse"
    """The canary is not judged worse: for the small shares at the beginning, whose requests could not prove more in a day."""
    GOOD_ENOUGH = "good enough"
    """Every metric is within its margin."""


class OnTimeout(Enum):
    """The action when a step has taken its `max_s`."""

    ROLL_BACK = "rollback"
    HOLD = "hold"
    """The share stays until an operator promotes or aborts; a canary that turns out worse is still rolled back."""


class RolloutStep(msgspec.Struct, frozen=True):
    """One share of the traffic; in a shadow phase, of the requests that are mirrored."""

    share: float
    min_requests: int = 100
    """Requests of the canary that have to be counted in this step."""
    min_s: float = 600.0
    max_s: float = 4 * 3600.0
    """Seconds; time at a gate or paused does not count."""
    needs: StepNeeds = StepNeeds.NOT_WORSE
    gate: bool = False
    """Whether an operator has to promote the rollout once the step is passed."""

    def problem(self) -> str | None:
        """The first invalid setting, as text; None for a valid step."""
        if not 0 < self.share <= 1:
            return f"share is {self.share:g}; it has to be above 0 and at most 1"
        if self.min_requests < 1:
            return f"min_requests is {self.min_requests}; it has to be at least 1"
        if not 0 <= self.min_s <= self.max_s <= 90 * DAY_S:
            return f"min_s {self.min_s:g} and max_s {self.max_s:g} have to be 0 <= min_s <= max_s <= {90 * DAY_S:g} seconds"
        return None


DEFAULT_STEPS: Final = (
    RolloutStep(0.01, min_requests=50),
    RolloutStep(0.05),
    RolloutStep(0.25, min_requests=500),
    RolloutStep(0.50, min_requests=1000, max_s=DAY_S, needs=StepNeeds.GOOD_ENOUGH),
    RolloutStep(1.0),
)


class RolloutPlan(msgspec.Struct, frozen=True):
    """A whole rollout. The last step is all of the traffic: a rollout that gets there is done, since no baseline is left to compare with.

    Raises:
        ValueError: for an invalid step or setting; the message names it.
    """

    salt: str
    """The rollout's id, so that the first conversations differ between rollouts."""
    steps: tuple[RolloutStep, ...] = DEFAULT_STEPS
    shadow: RolloutStep | None = None
    """The phase before the first step: requests are mirrored to the canary, and its answers are thrown away."""
    terms: ComparisonTerms = ComparisonTerms()
    warm_up_s: float = 120.0
    warm_up_requests: int = 20
    """At the beginning, intervals are left out until the canary has had both `warm_up_s` seconds and so many requests."""
    settle_s: float = 30.0
    """After every later change of share, intervals that begin within so many seconds are left out."""
    on_timeout: OnTimeout = OnTimeout.ROLL_BACK
    acts: bool = True
    """Whether a canary that is worse is rolled back; False for an experiment, which only reports."""

    def __post_init__(self) -> None:
        if not self.salt:
            raise ValueError("salt is empty; give the rollout's id")
        if not 1 < len(self.steps) <= MAX_STEPS:
            raise ValueError(f"there are {len(self.steps)} steps; there have to be 2 to {MAX_STEPS}, the last with share 1")
        for where, step in self.named():
            if (problem := step.problem()) is not None:
                raise ValueError(f"{where}: {problem}")
        if not _grows([step.share for step in self.steps]) or self.steps[-1].share != 1:
            raise ValueError("steps: shares have to grow from step to step and end with 1")
        if self.warm_up_s < 0 or self.settle_s < 0 or self.warm_up_requests < 0:
            raise ValueError("warm_up_s, settle_s and warm_up_requests cannot be below 0")

    def named(self) -> list[tuple[str, RolloutStep]]:
        """Every phase in order, with the name that reasons use."""
        shadow = [("shadow", self.shadow)] if self.shadow else []
        return shadow + [(f"{100 * step.share:g} %", step) for step in self.steps]


def _grows(shares: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(shares))
