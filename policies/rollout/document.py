"""The document that starts a rollout or an experiment, as a strict model, and its conversion into a `RolloutPlan`. Pure."""

import re
from typing import Annotated, Final, Literal, Self

import msgspec
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from domain.strict import Strict
from policies.rollout.plan import DAY_S, DEFAULT_STEPS, MAX_STEPS, OnTimeout, RolloutPlan, RolloutStep, StepNeeds
from policies.rollout.samples import METRICS
from policies.rollout.verdict import DEFAULT_MARGINS, ComparisonTerms
from policies.schema import ModelName, PoolName

MAX_NAMED: Final = 1000
"""Tenants, or models, that a rollout can be restricted to."""

PROMPT_VERSION: Final = re.compile(r"([a-z0-9_-]{1,64})@([1-9][0-9]{0,8})")

Seconds = Annotated[float, Field(ge=0, le=90 * DAY_S)]
Share = Annotated[float, Field(gt=0, le=1)]
Tenant = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
RolloutName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]


def _known_margins(margins: dict[str, float]) -> dict[str, float]:
    ComparisonTerms(margins={**DEFAULT_MARGINS, **margins})
    return margins


class RolloutStepEntry(Strict):
    """One share of the traffic."""

    share: Share = Field(description="Share of the conversations that the canary answers, 0 to 1.")
    min_requests: int = Field(
        default=100, ge=1, le=100_000_000, description="Requests of the canary that must be counted before the step can pass."
    )
    min_s: Seconds = Field(default=600.0, description="Least duration of the step, in seconds.")
    max_s: Seconds = Field(default=4 * 3600.0, description="Seconds after which `on_timeout` applies.")
    needs: Literal["not_worse", "good_enough"] = Field(
        default="not_worse",
        description="Condition for passing the step: `not_worse`, no metric is found worse; `good_enough`, every metric is within its "
        "margin.",
    )
    gate: bool = Field(default=False, description="Whether the rollout waits for a manual promotion after the step has passed.")

    def step(self) -> RolloutStep:
        """The step of a plan that this entry describes."""
        return RolloutStep(self.share, self.min_requests, self.min_s, self.max_s, StepNeeds[self.needs.upper()], self.gate)


class ShadowEntry(Strict):
    """A phase before the first step: requests are mirrored to the canary, its answers thrown away."""

    share: Share = Field(description="Share of the requests that are mirrored.")
    min_requests: int = Field(
        default=100, ge=1, le=100_000_000, description="Mirrored requests that must be counted before the phase can pass."
    )
    min_s: Seconds = Field(default=600.0, description="Least duration of the phase, in seconds.")
    max_s: Seconds = Field(default=4 * 3600.0, description="Seconds after which `on_timeout` applies.")
    gate: bool = Field(default=False, description="Whether the rollout waits for a manual promotion after the phase has passed.")
    max_in_flight: int = Field(
        default=4, ge=1, le=1000, description="Mirrored requests that each worker may have in flight; beyond it, none is mirrored."
    )


class ExperimentEntry(Strict):
    """Instead of steps: one share that stays, and a verdict that nothing follows from."""

    share: Share = Field(default=0.5, lt=1, description="Share of the conversations that the canary answers, above 0 and below 1.")
    min_requests: int = Field(
        default=1000, ge=1, le=100_000_000, description="Requests of the canary that must be counted before the verdict is final."
    )
    max_s: Seconds = Field(default=14 * DAY_S, description="Seconds after which `on_timeout` applies.")


class RolloutDocument(Strict):
    """One rollout file."""

    name: RolloutName = Field(description="Name of the rollout: lower-case letters, digits, inner dots and dashes.")
    of: Literal["pool", "prompt"] = Field(
        default="pool", description="Kind of the rollout: of a pool of engines, or of a version of a registered prompt."
    )
    baseline: PoolName = Field(description="The pool of `tidegate.yaml` that answers now; for a prompt, `ID@VERSION`.")
    canary: PoolName = Field(
        description="The pool with the change: model version, engine version, quantisation, launch options; for a prompt, `ID@VERSION`."
    )
    tenants: list[Tenant] | None = Field(
        default=None, min_length=1, max_length=MAX_NAMED, description="Only requests of these tenants; null for all tenants."
    )
    models: list[ModelName] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_NAMED,
        description="Only requests for these public names; null for all names that the pool serves.",
    )
    steps: list[RolloutStepEntry] | None = Field(
        default=None, min_length=2, max_length=MAX_STEPS, description="Increasing shares, the last 1; null for 1, 5, 25, 50 and 100 %."
    )
    shadow: ShadowEntry | None = Field(default=None, description="Mirror requests before the first step; null for no such phase.")
    experiment: ExperimentEntry | None = Field(default=None, description="Compare at one fixed share; the verdict changes nothing.")
    on_timeout: Literal["rollback", "hold"] = Field(
        default="rollback",
        description="What happens after `max_s` of a step: `rollback`, back to the baseline; `hold`, stay at the step until an "
        "operator decides.",
    )
    warm_up_s: Seconds = Field(default=120.0, description="Seconds at the beginning whose requests are not counted.")
    warm_up_requests: int = Field(
        default=20, ge=0, le=1_000_000, description="Requests of the canary at the beginning that are not counted."
    )
    settle_s: Seconds = Field(default=30.0, description="Seconds after each change of share whose requests are not counted.")
    alpha: float = Field(
        default=0.01,
        gt=0,
        le=0.2,
        description="Probability that a canary that is no worse than the margins is rolled back as worse (false alarm).",
    )
    margins: Annotated[dict[str, float], AfterValidator(_known_margins)] = Field(
        default={},
        description=f"How much worse than the baseline the canary may be, by metric ({', '.join(METRICS)}): absolute for a share, else "
        "as part of the baseline's value.",
    )
    interval_s: float = Field(
        default=10.0, ge=1, le=60, description="Seconds of one interval of counting; the comparison runs once per interval."
    )
    min_samples: int = Field(default=50, ge=1, le=1_000_000, description="Samples of the canary before a metric is judged at all.")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.baseline == self.canary:
            raise ValueError("baseline and canary are the same; name what is new as canary")
        if self.of == "prompt":
            versions = [PROMPT_VERSION.fullmatch(name) for name in (self.baseline, self.canary)]
            if None in versions or len({version[1] for version in versions if version is not None}) > 1:
                raise ValueError("baseline and canary are two versions of one prompt; write each as ID@VERSION")
            if self.shadow is not None:
                raise ValueError("has shadow, which is for pools; remove it")
        if self.experiment is not None and (self.steps is not None or self.shadow is not None):
            raise ValueError("has experiment and steps or shadow; an experiment has one share, keep one of them")
        self.plan("check")
        return self

    def plan(self, rollout_id: str) -> RolloutPlan:
        """The plan that the document describes. Raises ValueError for an impossible plan."""
        steps = tuple(entry.step() for entry in self.steps) if self.steps else DEFAULT_STEPS
        if self.experiment is not None:
            experiment = self.experiment
            steps = (
                RolloutStep(experiment.share, experiment.min_requests, 0.0, experiment.max_s, StepNeeds.GOOD_ENOUGH, gate=True),
                RolloutStep(1.0),
            )
        shadow = None
        if self.shadow is not None:
            shadow = RolloutStep(self.shadow.share, self.shadow.min_requests, self.shadow.min_s, self.shadow.max_s, gate=self.shadow.gate)
        return RolloutPlan(
            rollout_id,
            steps,
            shadow,
            ComparisonTerms(self.alpha, {**DEFAULT_MARGINS, **self.margins}, self.interval_s, self.min_samples),
            self.warm_up_s,
            self.warm_up_requests,
            self.settle_s,
            OnTimeout.ROLL_BACK if self.on_timeout == "rollback" else OnTimeout.HOLD,
            acts=self.experiment is None,
        )


def document_of(stored: str) -> RolloutDocument:
    """The document that was stored as text. Raises ValueError when this version cannot read it."""
    return RolloutDocument.model_validate(msgspec.json.decode(stored))


def text_of(document: RolloutDocument) -> str:
    """A document as it is stored: only the fields that were written, not this version's defaults."""
    return document.model_dump_json(exclude_unset=True)
