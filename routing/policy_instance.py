"""A policy instance: how one tenant's requests are routed. Compiled once, when a policy file is read."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from pydantic import Field

from domain.strict import Strict
from routing.ports import Memory, Policy
from routing.registry import POLICIES


class Choice(Strict):
    """Settings common to all policies: tie-breaking for costs in seconds (stage C), and when a KV cache counts as full (stage A)."""

    tie_share: float = Field(default=0.03, ge=0, le=1, description="Costs within this share of the lowest cost count as equal.")
    tie_s: float = Field(default=0.02, ge=0, le=10, description="Upper bound of that margin, in seconds.")
    sticky_s: float = Field(
        default=0.05, ge=0, description="A conversation stays on its backend while that costs at most this many seconds more."
    )
    sticky_slo_share: float = Field(
        default=0.25, ge=0, le=1, description="Upper bound of `sticky_s`, as a share of the request's promised time to the first token."
    )
    explore_share: float = Field(
        default=0.01,
        ge=0,
        le=0.2,
        description="Share of requests that explore: they go to a random backend that costs little more, to measure it.",
    )
    tight_slo_s: float = Field(
        default=2.0, ge=0, description="Requests whose promised time to the first token is at most this never explore."
    )
    kv_fill: float = Field(
        default=1.0, gt=0, le=10, description="Share of a backend's KV cache that may be reserved while another backend has room."
    )
    refuse_full: bool = Field(
        default=False,
        description="True: a request that fits into no backend's KV cache is not sent; false: it is sent, and queues on an engine.",
    )


class PolicyInstance(msgspec.Struct, frozen=True, gc=False):
    """A routing policy with its name, checked parameters, memory of past decisions and common settings."""

    name: str
    policy: Policy
    params: Strict
    memory: Memory | None
    choice: Choice
    weights: Any = None
    """`params` as decisions read them; filled in here."""
    margins: Any = None
    """`choice` as decisions read it; filled in here."""

    def __post_init__(self) -> None:
        """Copy the settings: a model of pydantic takes ten times as long to return an attribute, and a decision reads some thirty."""
        msgspec.structs.force_setattr(self, "weights", _plain(self.params))
        msgspec.structs.force_setattr(self, "margins", _plain(self.choice))


def _plain(settings: Strict) -> Any:
    """An object that has the fields of the settings as plain attributes."""
    fields = type(settings).model_fields
    return _plain_type(tuple(fields))(*[getattr(settings, name) for name in fields])


@lru_cache(maxsize=256)
def _plain_type(fields: tuple[str, ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Plain", fields, frozen=True, gc=False)


DEFAULT: Final = Choice()


def policy_instance(name: str, params: Mapping[str, Any] | None = None, choice: Choice = DEFAULT) -> PolicyInstance:
    """The instance of a policy, ready to route requests.

    Raises:
        KeyError: there is no such policy.
        pydantic.ValidationError: the policy has no such parameters.
    """
    policy = POLICIES[name]
    checked = policy.params.model_validate(dict(params or {}))
    return PolicyInstance(name, policy, checked, policy.memory(checked) if policy.memory else None, choice)
