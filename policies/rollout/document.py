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

    share: Share = Field(description="Of the conversations that the canary answers, 0 to 1.")
    min_requests: int = Field(default=100, ge=1, le=100_000_000, description="The canary's that have to be counted in this step.")
    min_s: Seconds = Field(default=600.0, description="Seconds that the step takes at least.")
    max_s: Seconds = Field(default=4 * 3600.0, description="Seconds after which `on_timeout` says what follows.")
    needs: Literal["not_worse", "good_enough"] = Field(
        default="not_worse",
        description="What has to be said of the canary: nothing against it, or that every metric is within its margin.",
    )
    gate: bool = Field(default=False, description="Whether somebody has to promote it once it is passed.")

    def step(self) -> RolloutStep:
        """The step of a plan that this entry describes."""
        return RolloutStep(self.share, self.min_requests, self.min_s, self.max_s, StepNeeds[self.needs.upper()], self.gate)


class ShadowEntry(Strict):
    """A phase before the first step: requests are mirrored to the canary, its answers thrown away."""

    share: Share = Field(description="Of the requests that are mirrored.")
    min_requests: int = Field(default=100, ge=1, le=100_000_000, description="Mirrored requests that have to be counted.")
    min_s: Seconds = Field(default=600.0, description="Seconds that it takes at least.")
    max_s: Seconds = Field(default=4 * 3600.0, description="Seconds after which `on_timeout` says what follows.")
    gate: bool = Field(default=False, description="Whether somebody has to promote it once it is passed.")
    max_in_flight: int = Field(
        default=4, ge=1, le=1000, description="Mirrored requests that each worker has under way at a time; with more, none is mirrored."
    )


class ExperimentEntry(Strict):
    """Instead of steps: one share that stays, and a verdict that nothing follows from."""

    share: Share = Field(default=0.5, lt=1, description="Of the conversations that the canary answers, above 0 and below 1.")
    min_requests: int = Field(default=1000, ge=1, le=100_000_000, description="The canary's before the verdict is final.")
    max_s: Seconds = Field(default=14 * DAY_S, description="Seconds after which `on_timeout` says what follows.")


class RolloutDocument(Strict):
    """One rollout file."""

    name: RolloutName = Field(description="Lower-case letters, digits, inner dots and dashes.")
    of: Literal["pool", "prompt"] = Field(
        default="pool", description="What is rolled out: a pool of engines, or a version of a prompt of the registry."
    )
    baseline: PoolName = Field(description="The pool of `tidegate.yaml` that answers now; of a prompt, `ID@VERSION`.")
    canary: PoolName = Field(
        description="The pool with what is new: model version, engine version, quantisation, launch options; of a prompt, `ID@VERSION`."
    )
    tenants: list[Tenant] | None = Field(
        default=None, min_length=1, max_length=MAX_NAMED, description="Only requests of these; null for everybody's."
    )
    models: list[ModelName] | None = Field(
        default=None, min_length=1, max_length=MAX_NAMED, description="Only requests for these public names; null for all of the pool's."
    )
    steps: list[RolloutStepEntry] | None = Field(
        default=None, min_length=2, max_length=MAX_STEPS, description="Growing shares, the last 1; null for 1, 5, 25, 50 and 100 %."
    )
    shadow: ShadowEntry | None = Field(default=None, description="Mirror requests before the first step; null for no such phase.")
    experiment: ExperimentEntry | None = Field(default=None, description="Compare at one share, and change nothing by the verdict.")
    on_timeout: Literal["rollback", "hold"] = Field(
        default="rollback", description="What follows when a step has taken `max_s`: back to the baseline, or stay until somebody decides."
    )
    warm_up_s: Seconds = Field(default=120.0, description="Seconds at the beginning that are not counted.")
    warm_up_requests: int = Field(default=20, ge=0, le=1_000_000, description="The canary's first requests that are not counted.")
    settle_s: Seconds = Field(default=30.0, description="Seconds after each change of share that are not counted.")
    alpha: float = Field(
        default=0.01, gt=0, le=0.2, description="The chance that a canary that is no worse than the margins is rolled back as worse."
    )
    margins: Annotated[dict[str, float], AfterValidator(_known_margins)] = Field(
        default={},
        description=f"By how much the canary may be worse, by metric ({', '.join(METRICS)}): points of a share, or part of the baseline's.",
    )
    interval_s: float = Field(default=10.0, ge=1, le=60, description="Seconds that are counted together; how often one looks.")
    min_samples: int = Field(default=50, ge=1, le=1_000_000, description="The canary's before a metric is judged at all.")

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
