"""Policy documents to an immutable PolicySet, made for look-ups on the request path. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from policies.schema import EVERYONE, PolicyDocument

DIGEST_CHARS: Final = 16
"""64 bits in hexadecimal: enough to tell a site's policy sets apart, short enough for every access-log line."""


class ModelRule(msgspec.Struct, frozen=True):
    """What a public model name means for a tenant."""

    name: str
    pool: str
    lora: str = ""
    """The adapter of the pool that answers; empty for the model as it is. No adapter can be reached but through a rule."""


class TenantPolicy(msgspec.Struct, frozen=True):
    """One tenant's policy; `tenant` is `*` in the one for everyone else."""

    tenant: str
    models: Mapping[str, ModelRule]
    """By public name; read-only."""
    routing: str
    expose_headers: bool
    max_output_tokens: int
    """Per choice, for requests without a cap of their own."""


class PolicySet:
    """Every policy in force; never changed, only replaced by a new one.

    Args:
        policies: with distinct tenants.
        digest: of their content; Records carry it.
    """

    __slots__ = ("_by_tenant", "_digest", "_everyone")

    def __init__(self, policies: Iterable[TenantPolicy], digest: str) -> None:
        self._by_tenant = {policy.tenant: policy for policy in policies}
        self._everyone = self._by_tenant.pop(EVERYONE, None)
        self._digest = digest

    @property
    def digest(self) -> str:
        """The first hexadecimal digits of SHA-256 over the content: same content, same digest, whatever its order."""
        return self._digest

    def for_tenant(self, tenant: str) -> TenantPolicy | None:
        """The tenant's own policy, else everyone's, else None: no model exists for it. One look-up."""
        return self._by_tenant.get(tenant, self._everyone)

    def policies(self) -> list[TenantPolicy]:
        """All of them by tenant, everyone's last."""
        return [*self._by_tenant.values(), *([self._everyone] if self._everyone else [])]


def compiled(documents: Iterable[PolicyDocument]) -> PolicySet:
    """Documents with distinct tenants and distinct model names, as `policies.load` has checked them."""
    ordered = sorted(documents, key=lambda document: document.tenant)
    return PolicySet((_policy(document) for document in ordered), _digest(ordered))


def _digest(ordered: list[PolicyDocument]) -> str:
    content = [document.model_dump() | {"models": sorted((m.name, m.pool, m.lora or "") for m in document.models)} for document in ordered]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS]


def _policy(document: PolicyDocument) -> TenantPolicy:
    return TenantPolicy(
        tenant=document.tenant,
        models=MappingProxyType({entry.name: ModelRule(entry.name, entry.pool, entry.lora or "") for entry in document.models}),
        routing=document.routing,
        expose_headers=document.expose_headers,
        max_output_tokens=document.max_output_tokens,
    )
