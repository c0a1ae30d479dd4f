"""`parameters` of a policy file: which parameters requests may set, their upper bounds, and the defaults of those a request leaves out.

A name may lead into an object: `chat_template_kwargs.enable_thinking`. Some parameters have several spellings
(`backends.dialects.structure`, `backends.dialects.thinking`). A rule for one spelling holds for all of them, so that none is a way
around it.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal, Self

import msgspec
from pydantic import Field, StringConstraints, model_validator

from backends.dialects.structure import OBJECT
from backends.dialects.structure import SPELLINGS as STRUCTURES
from backends.dialects.thinking import EFFORT, KWARGS, SWITCHES
from domain.ask import PROMPT_FIELDS
from domain.strict import Strict

ALWAYS: Final = PROMPT_FIELDS | {"model", "stream", "stream_options", "user", "metadata", "n"}
"""Parameters that are always allowed: the content of a request, its delivery, and its end user."""

CLOSED: Final = frozenset({"mm_processor_kwargs", "media_io_kwargs"})
"""Parameters that requests may set only where a policy opens them: sizes and numbers of frames cost memory and time without bound."""

SPELLINGS: Final = (
    frozenset({EFFORT, *SWITCHES, *(f"{KWARGS}.{name}" for name in (EFFORT, *SWITCHES))}),
    *(
        frozenset({*(name for name, spelled in STRUCTURES.items() if spelled == kind), f"{OBJECT}.{kind}"})
        for kind in dict.fromkeys(STRUCTURES.values())
    ),
)
"""The groups of names that stand for one parameter each."""

ParameterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,3}$")]
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
        description="Largest values of numeric parameters, by name; requests with a larger value are refused: `{temperature: 1, n: 4}`. "
        "Of a member, `media_io_kwargs.video.num_frames`, negative values are refused, too.",
    )
    refused: list[ParameterName] = Field(
        default=[],
        max_length=256,
        description="Parameters that requests may not set; if a parameter has a default, the default always applies. A dot leads into an "
        "object: `chat_template_kwargs.enable_thinking`.",
    )
    allowed: list[ParameterName] | None = Field(
        default=None,
        max_length=256,
        description="The only parameters that requests may set, besides the request's content (model, messages, prompt, input), "
        "stream, stream_options, user, metadata and n. Null: all that are not refused.",
    )
    opened: list[ParameterName] = Field(
        default=[],
        max_length=64,
        description="Parameters that requests may set only where this list has them, whole or by member: `mm_processor_kwargs`, "
        "`media_io_kwargs.video.num_frames`. Bound their values with at_most.",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name, bound in self.at_most.items():
            value = getattr(self.defaults, name, None)
            if isinstance(value, int | float) and value > bound:
                raise ValueError(f"has a default {name} of {value:g} above at_most's {bound:g}; lower the default")
        if strange := sorted({name for name in self.opened if _head(name) not in CLOSED}):
            raise ValueError(f"has {strange[0]} in opened, where only {' and '.join(sorted(CLOSED))} can stand; leave it out")
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
    refused_members: tuple[str, ...] = ()
    """Paths into objects that requests may not set."""
    allowed_members: frozenset[str] = frozenset()
    """Paths into objects of which only these members may be set."""
    opened: frozenset[str] = frozenset()
    """Fields of `CLOSED` that requests may set, whole or by paths into them."""


def parameters_of(written: ParametersField | None) -> Parameters | None:
    """The compiled `parameters` of a validated policy file; None when they restrict and default nothing."""
    if written is None:
        return None
    defaults = tuple(given_defaults(written.defaults))
    opened = frozenset(written.opened)
    may_be_set = None if written.allowed is None else ALWAYS | _every_spelling(written.allowed) | opened
    refused = _every_spelling(written.refused)
    if not (defaults or written.at_most or refused or opened) and may_be_set is None:
        return None
    allowed = None if may_be_set is None else frozenset(map(_head, may_be_set))
    partly = frozenset[str]() if may_be_set is None else {name for name in may_be_set if _head(name) not in may_be_set}
    looked_at = frozenset(map(_head, {*refused, *written.at_most, *partly})) | _looked_at(defaults)
    return Parameters(
        defaults,
        tuple(sorted(written.at_most.items())),
        frozenset(name for name in refused if _head(name) == name),
        allowed,
        looked_at,
        tuple(sorted(name for name in refused if _head(name) != name)),
        frozenset(partly),
        opened,
    )


def _head(name: str) -> str:
    """The parameter that a path leads into."""
    return name.partition(".")[0]


def _every_spelling(names: Iterable[str]) -> frozenset[str]:
    """The names, and the other spellings of their parameters."""
    spelled = frozenset(names)
    for group in SPELLINGS:
        if not spelled.isdisjoint(group) or (OBJECT in spelled and any(_head(name) == OBJECT for name in group)):
            spelled |= group
    return spelled


def _looked_at(defaults: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    """The names of defaults, and the other spellings in which a request may have set their parameters."""
    return frozenset(map(_head, _every_spelling(name for name, _ in defaults)))


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
        return Parameters(own, (), frozenset(), None, _looked_at(own))
    fixed = policy.refused & {name for name, _ in policy.defaults}
    bounds = dict(policy.at_most)
    prompt_defaults = tuple((name, _bounded(value, bounds.get(name))) for name, value in own if name not in fixed)
    names = {name for name, _ in prompt_defaults}
    defaults = (*prompt_defaults, *(default for default in policy.defaults if default[0] not in names))
    return msgspec.structs.replace(policy, defaults=defaults, looked_at=policy.looked_at | _looked_at(prompt_defaults))


def _bounded(value: bytes, bound: float | None) -> bytes:
    number = msgspec.json.decode(value)
    if bound is None or not isinstance(number, int | float) or number <= bound:
        return value
    return msgspec.json.encode(int(bound) if isinstance(number, int) else bound)
