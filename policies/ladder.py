"""`degrade` of a policy file: what a tenant's requests are given instead, step by step, before they wait long or are refused.

A ladder goes down only. Which requests a step is for is worked out once, when the policy is compiled, so that on the request path
there is nothing to look up but a name in a set.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from domain.strict import Strict
from policies.located_yaml import Located
from policies.problems import Path_, Problem

MAX_STEPS: Final = 16
"""Of one ladder: more than any family of models has sizes."""

REFUSE: Final = "refuse"

_Name = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]


class StepEntry(Strict):
    """One step that changes a request: `trim_output_tokens` or `model`."""

    trim_output_tokens: int | None = Field(default=None, ge=1, le=1_000_000, description="Output tokens per choice, at most.")
    model: _Name | None = Field(default=None, description="The model of this policy that answers instead.")
    of: list[_Name] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="The models that `model` stands in for; null for all but those that this step and later ones name.",
    )
    after_s: float = Field(
        default=0.0, ge=0, le=86_400, description="Predicted wait from which on the step is taken; 0 as soon as it would wait at all."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.trim_output_tokens is None) is (self.model is None):
            raise ValueError("is one of trim_output_tokens and model; write a step for each")
        if self.of is not None and self.model is None:
            raise ValueError("has `of` and no model; remove it")
        return self


_Mark = Literal["queue", "refuse"]
StepField: Any = Annotated[
    Annotated[_Mark, Tag("mark")] | Annotated[StepEntry, Tag("step")],
    Discriminator(lambda value: "mark" if isinstance(value, str) else "step"),
]


class Trim(msgspec.Struct, frozen=True):
    """A cap on the output."""

    output_tokens: int
    after_s: float


class Smaller(msgspec.Struct, frozen=True):
    """Another model of the policy."""

    model: str
    of: frozenset[str]
    """The models that were asked for, of requests that it is for."""
    after_s: float


class Mark(Enum):
    """A place in a ladder that changes nothing."""

    QUEUE = "queue"
    """Who may wait, waits here; what follows is for those who would be refused."""
    REFUSE = "refuse"
    """Nobody waits here."""


Step = Trim | Smaller | Mark


def ladder_of(written: Iterable["str | StepEntry"], models: Collection[str]) -> tuple[Step, ...]:
    """What a policy file says, checked already.

    Args:
        models: every one of the policy.
    """
    steps: list[Step] = []
    named: frozenset[str] = frozenset()  # by this step and later ones, as they are looked at from the end
    for one in reversed(list(written)):
        if isinstance(one, str):
            steps.append(Mark(one))
        elif one.trim_output_tokens is not None:
            steps.append(Trim(one.trim_output_tokens, one.after_s))
        elif one.model is not None:
            named |= {one.model}
            steps.append(Smaller(one.model, frozenset(models) - named if one.of is None else frozenset(one.of), one.after_s))
    return tuple(reversed(steps))


def ladder_problems(located: Located, above: Path_, known: Collection[str], meant: Any) -> Iterator[Problem]:
    """Models that do not exist, ladders that lead back, and steps that nobody reaches; looks at what was written, so that other
    mistakes hide none of these.

    Args:
        above: where in the file the ladder stands.
        known: the policy's models.
        meant: makes a hint of a name and those there are.
    """
    steps = located.value(*above, "degrade")
    left: set[str] = set()
    for i in range(len(steps) if isinstance(steps, list) else 0):
        at = (*above, "degrade", i)
        if i and located.value(*above, "degrade", i - 1) == REFUSE:
            yield located.problem(at, "comes after refuse, where nobody goes on", "remove it, or put refuse last")
            return
        model, of = located.value(*at, "model"), located.value(*at, "of")
        given = [(j, name) for j, name in enumerate(of) if isinstance(name, str)] if isinstance(of, list) else []
        for j, name in given:
            if name not in known:
                yield located.problem((*at, "of", j), f"this policy has no model {name!r}", meant(name, known))
        left.update(name for _, name in given)
        if not isinstance(model, str):
            continue
        if model not in known:
            yield located.problem((*at, "model"), f"this policy has no model {model!r}", meant(model, known))
        elif model in left:
            yield located.problem((*at, "model"), f"leads back to {model!r}, which the ladder has left", "name a smaller model, or none")
