"""`degrade` of a policy file: graceful degradation of a tenant's requests, step by step, before they wait long or are refused.

A ladder only degrades: it never leads back to a model that it has replaced. The models that a step replaces are computed once, when the
policy is compiled, so that the request path only looks up a name in a set.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from domain.strict import Strict
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem

MAX_STEPS: Final = 16
"""Steps of one ladder: more than any family of models has sizes."""

REFUSE: Final = "refuse"
CACHE_ONLY: Final = "cache_only"

_Name = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]


class StepEntry(Strict):
    """One step that changes a request: `trim_output_tokens` or `model`."""

    trim_output_tokens: int | None = Field(default=None, ge=1, le=1_000_000, description="Cap on output tokens per choice.")
    model: _Name | None = Field(default=None, description="The model of this policy that answers instead.")
    of: list[_Name] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="The models that `model` replaces; null for all models except the targets of this step and of later ones.",
    )
    after_s: float = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="Predicted wait from which on the step applies; 0 applies it as soon as the request would wait at all.",
    )

    @model_validator(mode="after")
    def _changes_one_thing(self) -> Self:
        if (self.trim_output_tokens is None) is (self.model is None):
            raise ValueError("is one of trim_output_tokens and model; write a step for each")
        if self.of is not None and self.model is None:
            raise ValueError("has `of` and no model; remove it")
        return self


_Mark = Literal["queue", "refuse", "cache_only"]
StepField: Any = Annotated[
    Annotated[_Mark, Tag("mark")] | Annotated[StepEntry, Tag("step")],
    Discriminator(lambda value: "mark" if isinstance(value, str) else "step"),
]


class Trim(msgspec.Struct, frozen=True):
    """A step that caps the output of a request."""

    output_tokens: int
    after_s: float


class Smaller(msgspec.Struct, frozen=True):
    """A step that replaces the requested model with another model of the policy."""

    model: str
    of: frozenset[str]
    """The requested models that the step replaces."""
    after_s: float


class Mark(Enum):
    """A place in a ladder that changes nothing."""

    QUEUE = "queue"
    """A request that may wait, waits here; the steps that follow are for requests that would be refused."""
    REFUSE = "refuse"
    """No request waits here."""
    CACHE_ONLY = "cache_only"
    """As `refuse`, and the answer cache is open to a tenant whose tokens or money are spent."""


Step = Trim | Smaller | Mark


def ladder_of(written: Iterable["str | StepEntry"], models: Collection[str]) -> tuple[Step, ...]:
    """The compiled ladder of a validated policy file.

    Args:
        models: all models of the policy.
    """
    steps: list[Step] = []
    already_named: frozenset[str] = frozenset()  # by this step and later ones: the loop runs from the end
    for entry in reversed(list(written)):
        if isinstance(entry, str):
            steps.append(Mark(entry))
        elif entry.trim_output_tokens is not None:
            steps.append(Trim(entry.trim_output_tokens, entry.after_s))
        elif entry.model is not None:
            already_named |= {entry.model}
            steps.append(
                Smaller(entry.model, frozenset(models) - already_named if entry.of is None else frozenset(entry.of), entry.after_s)
            )
    return tuple(reversed(steps))


def ladder_problems(located: Located, above: Path_, known: Collection[str], suggestion: Any) -> Iterator[Problem]:
    """Steps that name an unknown model, lead back to a replaced model or are never reached. Reads the data as written, so that other
    mistakes in the file hide none of these.

    Args:
        above: the path of the mapping that holds `degrade`.
        known: the policy's models.
        suggestion: makes a hint from an unknown name and the known names.
    """
    steps = located.value(*above, "degrade")
    already_replaced: set[str] = set()
    for i in range(len(steps) if isinstance(steps, list) else 0):
        at = (*above, "degrade", i)
        before = located.value(*above, "degrade", i - 1) if i else None
        if before in (REFUSE, CACHE_ONLY):
            yield located.problem(at, f"comes after {before}, where nobody goes on", f"remove it, or put {before} last")
            return
        if steps[i] == CACHE_ONLY and located.value(*above, "cache") is None:
            yield located.problem(at, "asks a cache, and there is none here", "write cache: {} beside degrade, or refuse in its place")
        model = located.value(*at, "model")
        of = located.value(*at, "of")
        replaced = [(j, name) for j, name in enumerate(of) if isinstance(name, str)] if isinstance(of, list) else []
        for j, name in replaced:
            if name not in known:
                yield located.problem((*at, "of", j), f"this policy has no model {name!r}", suggestion(name, known))
        already_replaced.update(name for _, name in replaced)
        if not isinstance(model, str):
            continue
        if model not in known:
            yield located.problem((*at, "model"), f"this policy has no model {model!r}", suggestion(model, known))
        elif model in already_replaced:
            yield located.problem((*at, "model"), f"leads back to {model!r}, which the ladder has left", "name a smaller model, or none")
