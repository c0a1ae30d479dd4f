"""`parameters` of a policy file: which parameters requests may set, their upper bounds, and the defaults of those a request leaves out."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

import msgspec
from pydantic import Field, StringConstraints, model_validator

from domain.ask import PROMPT_FIELDS
from domain.strict import Strict

ALWAYS: Final = PROMPT_FIELDS | {"model", "stream", "stream_options", "user", "metadata", "n"}
"""Parameters that are always allowed: the content of a request, its delivery, and its end user."""

ParameterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Defaults(Strict):
    """Values of parameters that a request does not set. Embeddings have none of them."""

    temperature: float | None = Field(default=None, ge=0, le=2, description="Sampling temperature.")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Share of the probability mass that is sampled from (nucleus sampling)."
    )
    top_k: int | None = Field(
        default=None, ge=-1, le=1_000_000, description="Number of the likeliest tokens that are sampled from; -1 for all."
    )
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="Least probability of a sampled token, relative to that of the likeliest token."
    )
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, description="Penalty on tokens that occur in the text already.")
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Penalty on tokens that grows with their number of occurrences."
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=10, description="Factor against repeated tokens, above 0, at most 10; 1 for none."
    )
    seed: int | None = Field(default=None, ge=-(2**53), le=2**53, description="Seed of the sampling, for repeatable answers.")
    stop: list[Stop] | None = Field(default=None, min_length=1, max_length=4, description="Texts at which an answer ends.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = Field(
        default=None, description="Reasoning effort; for chat requests only."
    )


class ParametersField(Strict):
    """Rules for the parameters that requests may set."""

    defaults: Defaults = Field(default=Defaults(), description="Values of parameters that a request does not set.")
    at_most: dict[ParameterName, float] = Field(
        default={},
        max_length=64,
        description="Largest values of numeric parameters, by name; requests with a larger value are refused: `{temperature: 1, n: 4}`.",
    )
    refused: list[ParameterName] = Field(
        default=[],
        max_length=256,
        description="Parameters that requests may not set; if a parameter has a default, the default always applies.",
    )
    allowed: list[ParameterName] | None = Field(
        default=None,
        max_length=256,
        description="The only parameters that requests may set, besides the request's content (model, messages, prompt, input), "
        "stream, stream_options, user, metadata and n. Null: all that are not refused.",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name, bound in self.at_most.items():
            value = getattr(self.defaults, name, None)
            if isinstance(value, int | float) and value > bound:
                raise ValueError(f"has a default {name} of {value:g} above at_most's {bound:g}; lower the default")
        if self.allowed is not None and (both := sorted(set(self.allowed) & set(self.refused))):
            raise ValueError(f"has {both[0]} allowed and refused; keep one")
        return self


class Parameters(msgspec.Struct, frozen=True):
    """`ParametersField`, compiled for the request path."""

    defaults: tuple[tuple[str, bytes], ...]
    """Pairs of name and value as JSON."""
    at_most: tuple[tuple[str, float], ...]
    refused: frozenset[str]
    allowed: frozenset[str] | None
    looked_at: frozenset[str]
    """Names that a request is checked for: refused, bounded or with a default."""


def parameters_of(written: ParametersField | None) -> Parameters | None:
    """The compiled `parameters` of a validated policy file; None when they restrict and default nothing."""
    if written is None:
        return None
    defaults = tuple(given_defaults(written.defaults))
    allowed = None if written.allowed is None else ALWAYS | set(written.allowed)
    refused = frozenset(written.refused)
    if not (defaults or written.at_most or refused) and allowed is None:
        return None
    looked_at = refused | written.at_most.keys() | {name for name, _ in defaults}
    return Parameters(defaults, tuple(sorted(written.at_most.items())), refused, allowed, looked_at)


def given_defaults(defaults: Defaults) -> Iterator[tuple[str, bytes]]:
    """The defaults that are set, as pairs of name and value as JSON."""
    for name in Defaults.model_fields:
        value = getattr(defaults, name)
        if value is not None:
            yield name, msgspec.json.encode(value)


def with_prompt_defaults(own: tuple[tuple[str, bytes], ...], policy: Parameters | None) -> Parameters | None:
    """The parameters of a policy, with the defaults of a prompt in front of the policy's own. A parameter that the policy refuses and has a
    default for keeps the policy's default; a prompt's value above the policy's bound becomes the bound.

    Args:
        own: the prompt's defaults, as pairs of name and value as JSON.
        policy: None when the policy has no `parameters`.
    """
    if not own:
        return policy
    if policy is None:
        return Parameters(own, (), frozenset(), None, frozenset(name for name, _ in own))
    fixed = policy.refused & {name for name, _ in policy.defaults}
    bounds = dict(policy.at_most)
    prompt_defaults = tuple((name, _bounded(value, bounds.get(name))) for name, value in own if name not in fixed)
    names = {name for name, _ in prompt_defaults}
    defaults = (*prompt_defaults, *(default for default in policy.defaults if default[0] not in names))
    return msgspec.structs.replace(policy, defaults=defaults, looked_at=policy.looked_at | names)


def _bounded(value: bytes, bound: float | None) -> bytes:
    number = msgspec.json.decode(value)
    if bound is None or not isinstance(number, int | float) or number <= bound:
        return value
    return msgspec.json.encode(int(bound) if isinstance(number, int) else bound)
