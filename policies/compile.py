"""Policy documents to an immutable PolicySet, made for look-ups on the request path. Pure."""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from policies.schema import EVERYONE, PolicyDocument


class ModelRule(msgspec.Struct, frozen=True):
    """What a public model name means for a tenant."""

    name: str
    pool: str


class TenantPolicy(msgspec.Struct, frozen=True):
    """One tenant's policy."""

    tenant: str
    models: Mapping[str, ModelRule]
    routing: str
    expose_headers: bool
    max_output_tokens: int


class PolicySet:
    """Every policy in force, with a digest over their content that Records carry."""

    __slots__ = ("_by_tenant", "_everyone", "digest")

    def __init__(self, policies: Iterable[TenantPolicy], digest: str) -> None:
        self._by_tenant = {policy.tenant: policy for policy in policies}
        self._everyone = self._by_tenant.pop(EVERYONE, None)
        self.digest = digest

    def for_tenant(self, tenant: str) -> TenantPolicy | None:
        """The tenant's own policy, else everyone's, else None: no model exists for it."""
        return self._by_tenant.get(tenant, self._everyone)

    def policies(self) -> list[TenantPolicy]:
        """All of them, everyone's last."""
        return [*self._by_tenant.values(), *([self._everyone] if self._everyone else [])]


def compiled(documents: Iterable[PolicyDocument]) -> PolicySet:
    """Documents with distinct tenants and distinct model names, as `policies.load` has checked them."""
    ordered = sorted(documents, key=lambda d: d.tenant)
    digest = hashlib.sha256(b"\n".join(d.model_dump_json().encode() for d in ordered)).hexdigest()[:16]
    return PolicySet((_policy(d) for d in ordered), digest)


def _policy(document: PolicyDocument) -> TenantPolicy:
    return TenantPolicy(
        tenant=document.tenant,
        models={entry.name: ModelRule(entry.name, entry.pool) for entry in document.models},
        routing=document.routing,
        expose_headers=document.expose_headers,
        max_output_tokens=document.max_output_tokens,
    )
