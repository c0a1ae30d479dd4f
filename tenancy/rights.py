"""Rights of a key: allowlists and caps, as operators set them at each level, and the tightest of them with the level it came from. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from domain.priority import Class
from tenancy.limits import Scope

MAX_NAMES: Final = 1000
"""Names in one allowlist: as many models as a policy may name."""
MAX_NAME_CHARS: Final = 256
MAX_CAP: Final = 2**31 - 1


class Role(Enum):
    """A role of an admin key."""

    OWNER = "owner"
    ADMIN = "admin"
    OPERATOR = "operator"
    BILLING = "billing"
    AUDITOR = "auditor"
    TENANT_ADMIN = "tenant-admin"
    """For the key's own tenant only; every other role is for the whole gateway."""


class KeyScope(Enum):
    """The ports that accept a key."""

    INFERENCE = "inference"
    """The data port."""
    ADMIN = "admin"
    """The admin port, with the key's roles."""


INFERENCE_ONLY: Final = frozenset({KeyScope.INFERENCE})


class Caps(msgspec.Struct, frozen=True, omit_defaults=True):
    """Upper bounds on the parameters of one request; None for no bound of this level."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    """Per choice."""
    max_choices: int | None = None
    """`n`."""
    max_logprobs: int | None = None
    """`logprobs` or `top_logprobs`; 0 for none at all."""
    tools: bool = True
    """False where requests may not carry tools. A level below cannot allow them again."""

    def __post_init__(self) -> None:
        for name, least in (("max_input_tokens", 1), ("max_output_tokens", 1), ("max_choices", 1), ("max_logprobs", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MAX_CAP:
                raise ValueError(f"{name} {value}: between {least} and {MAX_CAP}")


class Rights(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rights that one level sets. None for a list keeps what the levels above and the policy allow; an empty list allows nothing."""

    models: frozenset[str] | None = None
    """Public model names."""
    loras: frozenset[str] | None = None
    """Adapter names. Requests without an adapter are not restricted by it."""
    endpoints: frozenset[str] | None = None
    """Paths of the data port, as `/v1/embeddings`."""
    caps: Caps = Caps()
    priority_class: Class | None = None
    """The highest class of requests; None keeps what the levels above and the policy allow."""

    def __post_init__(self) -> None:
        for field in ("models", "loras", "endpoints"):
            names = getattr(self, field)
            if names is not None and (len(names) > MAX_NAMES or any(not 0 < len(name) <= MAX_NAME_CHARS for name in names)):
                raise ValueError(f"{field}: at most {MAX_NAMES} names of 1 to {MAX_NAME_CHARS} characters")


NO_RIGHTS_SET: Final = Rights()


class Cap(msgspec.Struct, frozen=True):
    """A cap in force, and the scope that sets it."""

    value: int
    scope: Scope


class Allowlist(msgspec.Struct, frozen=True):
    """One level's allowlist, and the scope that sets it."""

    names: frozenset[str]
    scope: Scope


class Allowed(msgspec.Struct, frozen=True):
    """The rights of all levels together: a name must be in every list, and the smallest cap counts."""

    models: tuple[Allowlist, ...] = ()
    loras: tuple[Allowlist, ...] = ()
    endpoints: tuple[Allowlist, ...] = ()
    max_input_tokens: Cap | None = None
    max_output_tokens: Cap | None = None
    max_choices: Cap | None = None
    max_logprobs: Cap | None = None
    tools_refused_by: Scope | None = None
    priority_class: Class = Class.CRITICAL
    """The lowest class that any level sets."""

    def refuses_model(self, name: str) -> Scope | None:
        """The widest level that does not allow this model; None when all do."""
        return _refusing(self.models, name)

    def refuses_lora(self, name: str) -> Scope | None:
        """The widest level that does not allow this adapter; None when all do."""
        return _refusing(self.loras, name)

    def refuses_endpoint(self, path: str) -> Scope | None:
        """The widest level that does not allow this path of the data port; None when all do."""
        return _refusing(self.endpoints, path)


def _refusing(lists: tuple[Allowlist, ...], name: str) -> Scope | None:
    for allowlist in lists:
        if name not in allowlist.names:
            return allowlist.scope
    return None


EVERYTHING: Final = Allowed()
"""No restriction: no level sets any rights."""


def combined(levels: Iterable[tuple[Scope, Rights]]) -> Allowed:
    """The rights of all levels together. `levels` go from wide to narrow; of equal caps the wider level is named."""
    known = [(scope, rights) for scope, rights in levels if rights != NO_RIGHTS_SET]
    if not known:
        return EVERYTHING

    def lists(field: str) -> tuple[Allowlist, ...]:
        return tuple(Allowlist(names, scope) for scope, rights in known if (names := getattr(rights, field)) is not None)

    def smallest(field: str) -> Cap | None:
        caps = [Cap(value, scope) for scope, rights in known if (value := getattr(rights.caps, field)) is not None]
        return min(caps, key=lambda cap: cap.value, default=None)

    return Allowed(
        models=lists("models"),
        loras=lists("loras"),
        endpoints=lists("endpoints"),
        max_input_tokens=smallest("max_input_tokens"),
        max_output_tokens=smallest("max_output_tokens"),
        max_choices=smallest("max_choices"),
        max_logprobs=smallest("max_logprobs"),
        tools_refused_by=next((scope for scope, rights in known if not rights.caps.tools), None),
        priority_class=max((rights.priority_class or Class.CRITICAL for _, rights in known)),
    )
