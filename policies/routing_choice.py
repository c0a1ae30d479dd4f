"""`routing` of a policy file: the name of a routing policy, or a mapping of the name and of parameters.

Generated from `routing.registry`, so a new policy needs no line here. Each policy's mapping is a subclass of its own `params` and of
`Choice`, so the validated mapping is handed on as it is.
"""

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Union

import msgspec
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, create_model
from pydantic.json_schema import SkipJsonSchema

from domain.strict import Strict
from routing.policy_instance import DEFAULT, Choice, PolicyInstance
from routing.registry import POLICIES

DEFAULT_ROUTING: Final = "predicted_latency"

NAMES: Final = tuple(POLICIES)


class Routing(msgspec.Struct, frozen=True):
    """How backends are chosen for one tenant's requests."""

    policy: str
    params: Strict
    choice: Choice
    key: str
    """Identifies the routing policy and its parameters; equal for tenants whose files set the same."""

    def policy_instance(self) -> PolicyInstance:
        """A new instance of the routing policy, with a memory of its own."""
        policy = POLICIES[self.policy]
        return PolicyInstance(self.policy, policy, self.params, policy.memory(self.params) if policy.memory else None, self.choice)


def _known(name: str) -> str:
    if name not in POLICIES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(NAMES)}"
        raise ValueError(f"there is no routing policy {name!a:.60}; {hint}")
    return name


_Name = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(NAMES)})]


class _Nameless(Strict):
    """A mapping that names no known routing policy: reports a problem at `policy` and ignores all other keys."""

    model_config = ConfigDict(extra="ignore")

    policy: _Name


def _with_parameters(name: str) -> type[Strict]:
    params = POLICIES[name].params
    if both := params.model_fields.keys() & Choice.model_fields.keys():
        raise TypeError(f"routing policy {name} has parameters that every policy has: {', '.join(sorted(both))}")
    field: Any = (Literal[name], Field(description="Name of the routing policy."))
    model: type[Strict] = create_model(f"Routing_{name}", __base__=(params, Choice), __doc__=f"`{name}`, with parameters.", policy=field)
    return model


WITH_PARAMETERS: Final[Mapping[str, type[Strict]]] = {name: _with_parameters(name) for name in NAMES}
"""The model of each routing policy's mapping, by the policy's name."""


def _branch(value: object) -> str:
    """The tag of the branch that validates `value`: a policy's name for a mapping of it, else `nameless` or `name`."""
    name = value.get("policy") if isinstance(value, dict) else getattr(value, "policy", None)
    if isinstance(name, str) and name in WITH_PARAMETERS:
        return name
    return "nameless" if isinstance(value, dict) else "name"


_BRANCHES: Final = (
    Annotated[_Name, Tag("name")],
    Annotated[_Nameless, Tag("nameless"), SkipJsonSchema()],  # type: ignore[type-arg]  # an annotation here, not a type
    *(Annotated[model, Tag(name)] for name, model in WITH_PARAMETERS.items()),
)

RoutingField: Any = Annotated[Union[_BRANCHES], Discriminator(_branch)]  # noqa: UP007 - the members are known at run time only


def routing_of(written: "str | Strict") -> Routing:
    """The routing of a validated policy file."""
    if isinstance(written, str):
        return Routing(written, POLICIES[written].params(), DEFAULT, written)
    name: str = written.policy  # type: ignore[attr-defined]  # every model of WITH_PARAMETERS has it
    assert isinstance(written, Choice)
    return Routing(name, written, written, json.dumps(written.model_dump(mode="json"), sort_keys=True))
