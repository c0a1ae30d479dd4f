"""Policy documents to an immutable PolicySet, made for look-ups on the request path. Pure."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import msgspec

from domain.priority import CLASSES, Class
from policies.fallback import Fallback
from policies.ladder import Smaller, Step, ladder_of
from policies.parameters import Parameters, parameters_of
from policies.prompts.allowed import AllowedVersions, Registry, allowed_of
from policies.routing_choice import Routing, routing_of
from policies.rules import Rule, RuleBook
from policies.schema import EVERYONE, ModelEntry, PolicyDocument, RuleEntry, Treatment
from policies.sticky import place

DIGEST_CHARS: Final = 16
"""64 bits in hexadecimal: enough to tell a site's policy sets apart, short enough for every access-log line."""


_NO_PROMPTS: Final[Mapping[str, AllowedVersions]] = MappingProxyType({})


class ModelRule(msgspec.Struct, frozen=True):
    """What a public model name means for a tenant."""

    name: str
    pool: str
    lora: str = ""
    """The adapter of the pool that answers; empty for the model as it is. No adapter can be reached but through a rule."""
    shares: tuple[tuple[float, str], ...] = ()
    """Of a model that several pools serve: where on [0, 1) each one's part ends, and the pool; empty for one pool."""
    fallback: tuple[Fallback, ...] = ()
    """What answers instead where it cannot, in this order."""

    def shared(self, key: str) -> "ModelRule":
        """The same with one pool: for equal keys the same one."""
        if not self.shares:
            return self
        at = place(self.name, key)
        pool = next((pool for end, pool in self.shares if at < end), self.shares[-1][1])
        return ModelRule(self.name, pool, self.lora, (), self.fallback)


class Layer(msgspec.Struct, frozen=True):
    """What one file says of how requests are treated: fields of `TenantPolicy`."""

    base: Mapping[str, Any]
    for_project: Mapping[str, Mapping[str, Any]]
    for_model: Mapping[str, Mapping[str, Any]]


class TenantPolicy(msgspec.Struct, frozen=True):
    """One tenant's policy; `tenant` is `*` in the one for everyone else."""

    tenant: str
    models: Mapping[str, ModelRule]
    """By public name; read-only. Aliases lead to the rule of the model they stand for."""
    routing: Routing
    expose_headers: bool
    max_output_tokens: int
    """Per choice, for requests without a cap of their own."""
    layers: tuple[Layer, ...] = ()
    """Everyone's and its own, where projects or models are treated otherwise; else none."""
    statistical: bool = False
    """Whether output is reserved by what answers usually take, not by what they may take."""
    priority: float = 0.0
    """-1 to 1, for placing."""
    ttft_slo_s: float | None = None
    """Seconds to the first token that it was promised."""
    tpot_slo_s: float | None = None
    """Seconds from one token to the next that it was promised."""
    max_wait_s: float | None = None
    """Longest that a request may wait for its turn; None for what its class may."""
    deadline_s: float | None = None
    """Seconds from its last byte in which a request's answer has to be complete."""
    priority_class: Class = Class.DEFAULT
    """The highest class of its requests."""
    parameters: Parameters | None = None
    """What requests may set, and what holds where they do not; None where nothing is said."""
    degrade: tuple[Step, ...] = ()
    """What requests are given instead before they wait long or are refused for overload."""
    choose_arm: bool = False
    """Whether requests may choose the arm of a rollout."""

    rules: RuleBook | None = None
    """What is otherwise for some requests; None where nothing is."""
    prompts: Mapping[str, AllowedVersions] = _NO_PROMPTS
    """The prompts that exist for it, by id; read-only."""

    def treating(self, project: str, model: str) -> "TenantPolicy":
        """What holds for requests of a project for a model: what its own file says comes after all that everyone's says, in each
        first what is for all, then the project's, then the model's."""
        if not any(project in layer.for_project or model in layer.for_model for layer in self.layers):
            return self
        said: dict[str, Any] = {}
        for layer in self.layers:
            said |= layer.base
            said |= layer.for_project.get(project, _NOTHING)
            said |= layer.for_model.get(model, _NOTHING)
        return msgspec.structs.replace(self, **said)


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


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

    def prompts_for(self, tenant: str) -> Mapping[str, AllowedVersions]:
        """The prompts that exist for a tenant, by id."""
        policy = self.for_tenant(tenant)
        return _NO_PROMPTS if policy is None else policy.prompts

    def models(self) -> list[str]:
        """Every public name that any of them has, sorted."""
        return sorted({name for policy in self.policies() for name in policy.models})

    def policies(self) -> list[TenantPolicy]:
        """All of them by tenant, everyone's last."""
        return [*self._by_tenant.values(), *([self._everyone] if self._everyone else [])]


def compiled(documents: Iterable[PolicyDocument], prompts: Registry = MappingProxyType({})) -> PolicySet:
    """Documents with distinct tenants and distinct model names, as `policies.load` has checked them, and the prompts there are."""
    ordered = sorted(documents, key=lambda document: document.tenant)
    everyone = next((document for document in ordered if document.tenant == EVERYONE), None)
    return PolicySet((_policy(document, everyone, prompts) for document in ordered), _digest(ordered, prompts))


def _digest(ordered: list[PolicyDocument], prompts: Registry) -> str:
    content: list[Any] = sorted([one.name, one.digest] for versions in prompts.values() for one in versions.values())
    for document in ordered:
        written = document.model_dump(mode="json", exclude_unset=True)
        if "models" in written:
            written["models"].sort(key=lambda entry: entry["name"])
        content.append(written)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS]


def _policy(document: PolicyDocument, everyone: PolicyDocument | None, prompts: Registry) -> TenantPolicy:
    above = [] if everyone is None or everyone is document else [everyone]
    entries = next((one.models for one in (document, *above) if "models" in one.model_fields_set), [])
    models = _rules(entries)
    layers = tuple(_layer(one, models) for one in (*above, document))
    said: dict[str, Any] = {}
    for layer in (_layer(_DEFAULTS, models, every_field=True), *layers):
        said |= layer.base
    written = next((one.rules for one in (document, *above) if "rules" in one.model_fields_set), [])
    made = [_ruled(entry, models) for entry in written]
    # of inherited rules, those for or to models that the tenant does not have are left out
    rules = [rule for rule in made if (not rule.model or rule.model in models) and (not rule.models or rule.models & models.keys())]
    allowed = next((one.prompts for one in (document, *above) if "prompts" in one.model_fields_set), [])
    differing = any(layer.for_project or layer.for_model for layer in layers)
    return TenantPolicy(
        tenant=document.tenant,
        models=models,
        layers=layers if differing else (),
        rules=RuleBook(rules, document.tenant) if rules else None,
        prompts=allowed_of(allowed, prompts),
        **said,
    )


def _ruled(entry: RuleEntry, models: Mapping[str, ModelRule]) -> Rule:
    # a rule for an alias is for the model it stands for: that is what requests for it are by then
    names = frozenset(models[name].name for name in entry.models if name in models) or frozenset(entry.models)
    said = _said(entry.then, models, entry.then.model_fields_set)
    return Rule(entry.name, names, entry.if_, entry.share, entry.then.model or "", said)


def _rules(entries: Iterable[ModelEntry]) -> Mapping[str, ModelRule]:
    written = {entry.name: entry for entry in entries}
    rules = {}
    for name in written:
        rules[name] = _rule(_meant(name, written), written)
    return MappingProxyType(rules)


def _meant(name: str, written: Mapping[str, ModelEntry]) -> ModelEntry:
    meant = written[name]
    while meant.alias_of is not None:
        meant = written[meant.alias_of]
    return meant


def _rule(entry: ModelEntry, written: Mapping[str, ModelEntry]) -> ModelRule:
    lora = entry.lora or ""
    chain = tuple(Fallback(_meant(one.to, written).name, frozenset(one.on)) for one in entry.fallback or ())
    if entry.pools is None:
        assert entry.pool is not None
        return ModelRule(entry.name, entry.pool, lora, (), chain)
    whole = sum(one.weight for one in entry.pools)
    ends = accumulate(one.weight / whole for one in entry.pools)
    shares = tuple((end, one.pool) for end, one in zip(ends, entry.pools, strict=True))
    return ModelRule(entry.name, entry.pools[0].pool, lora, shares, chain)


def _layer(document: PolicyDocument, models: Collection[str], *, every_field: bool = False) -> Layer:
    return Layer(
        _said(document, models, Treatment.model_fields if every_field else document.model_fields_set),
        {name: _said(one, models, one.model_fields_set) for name, one in document.for_project.items()},
        {name: _said(one, models, one.model_fields_set) for name, one in document.for_model.items()},
    )


_DEFAULTS: Final = PolicyDocument(tenant=EVERYONE)

_Made = Callable[[Any], Any]
_MADE: Final[Mapping[str, tuple[str, _Made]]] = {
    "routing": ("routing", routing_of),
    "parameters": ("parameters", parameters_of),
    "output_reservation": ("statistical", lambda written: written == "statistical"),
    "class_": ("priority_class", CLASSES.__getitem__),
}
"""Fields whose compiled value has another name or form."""


def _said(written: Treatment, models: Collection[str], names: Collection[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name in names:
        if name == "degrade":
            steps = ladder_of(written.degrade, models)
            # of an inherited ladder, what leads to models that the tenant does not have
            said[name] = tuple(step for step in steps if not isinstance(step, Smaller) or step.model in models)
        elif name in Treatment.model_fields:
            to, make = _MADE.get(name, (name, None))
            value = getattr(written, name)
            said[to] = value if make is None else make(value)
    return said
