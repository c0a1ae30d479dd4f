"""What a rollout is to do: its steps, what each asks for, and what a step that never decides comes to."""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

import msgspec

from policies.rollout.verdict import Terms

DAY_S: Final = 86_400.0
MAX_STEPS: Final = 32


class Needs(Enum):
    """What has to be said of a canary before its step is passed."""

    NOT_WORSE = "not worse"
    """Nothing against it: for the small shares at the beginning, whose requests could not prove more in a day."""
    GOOD_ENOUGH = "good enough"
    """Every metric within its margin."""


class OnTimeout(Enum):
    """What follows when a step has taken as long as it may."""

    ROLL_BACK = "rollback"
    HOLD = "hold"
    """The share stays until somebody promotes or aborts; a canary that turns out worse still goes back."""


class Step(msgspec.Struct, frozen=True):
    """One share of the traffic; in a shadow phase, of the requests that are mirrored."""

    share: float
    min_requests: int = 100
    """The canary's that are counted in this step."""
    min_s: float = 600.0
    max_s: float = 4 * 3600.0
    """Time at a gate or paused does not count."""
    needs: Needs = Needs.NOT_WORSE
    gate: bool = False
    """Somebody has to promote it once it is passed."""

    def problem(self) -> str | None:
        """What cannot be meant; None of a good step."""
        if not 0 < self.share <= 1:
            return f"share is {self.share:g}; it has to be above 0 and at most 1"
        if self.min_requests < 1:
            return f"min_requests is {self.min_requests}; it has to be at least 1"
        if not 0 <= self.min_s <= self.max_s <= 90 * DAY_S:
            return f"min_s {self.min_s:g} and max_s {self.max_s:g} have to be 0 <= min_s <= max_s <= {90 * DAY_S:g} seconds"
        return None


DEFAULT_STEPS: Final = (
    Step(0.01, min_requests=50),
    Step(0.05),
    Step(0.25, min_requests=500),
    Step(0.50, min_requests=1000, max_s=DAY_S, needs=Needs.GOOD_ENOUGH),
    Step(1.0),
)


class Plan(msgspec.Struct, frozen=True):
    """A whole rollout. The last step is all of the traffic: whoever gets there is done, there is nothing left to compare with.

    Raises:
        ValueError: says which step asks for what cannot be.
    """

    salt: str
    """The rollout's id; its own, so that not the same conversations are first in every rollout."""
    steps: tuple[Step, ...] = DEFAULT_STEPS
    shadow: Step | None = None
    """Before the first step: requests are mirrored to the canary, its answers thrown away."""
    terms: Terms = Terms()
    warm_up_s: float = 120.0
    warm_up_requests: int = 20
    """At the beginning, intervals are left out until the canary has had both so much time and so many requests."""
    settle_s: float = 30.0
    """After every other change of share, intervals that begin sooner are left out."""
    on_timeout: OnTimeout = OnTimeout.ROLL_BACK
    acts: bool = True
    """Whether a canary that is worse goes back; not in an experiment, which only wants to know."""

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

    def named(self) -> list[tuple[str, Step]]:
        """Every phase in order, under the name that reasons call it by."""
        shadow = [("shadow", self.shadow)] if self.shadow else []
        return shadow + [(f"{100 * step.share:g} %", step) for step in self.steps]


def _grows(shares: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(shares))
