"""Compiles policy documents into an immutable PolicySet, which is made for look-ups on the request path. Pure."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import msgspec

from cache.policy import CachePolicy
from domain.priority import CLASSES, Class
from policies.caps import USUAL_CAPS, RequestCaps, caps_of, widest
from policies.fallback import Fallback
from policies.guards import GuardLevels, guard_levels
from policies.image_urls import ImageUrls
from policies.ladder import Smaller, Step, ladder_of
from policies.parameters import Parameters, parameters_of
from policies.prompts.allowed import AllowedVersions, Registry, allowed_of
from policies.rollout.assignment import place
from policies.routing_choice import Routing, routing_of
from policies.rules import Rule, RuleBook
from policies.schema import EVERYONE, ModelEntry, PolicyDocument, RequestLogPolicy, ResponsesPolicy, RuleEntry, Treatment
from policies.traces import TracePolicy
from policies.yaml.located import Located
from policies.yaml.problems import Problem

DIGEST_CHARS: Final = 16
"""64 bits in hexadecimal: enough to tell a site's policy sets apart, short enough for every access-log line."""


_NO_PROMPTS: Final[Mapping[str, AllowedVersions]] = MappingProxyType({})


class ModelRule(msgspec.Struct, frozen=True):
    """The target of a public model name of a tenant: pool or pools, adapter, fallbacks."""

    name: str
    pool: str
    lora: str = ""
    """The adapter that answers; empty for the base model. An adapter can be reached only through a ModelRule."""
    shares: tuple[tuple[float, str], ...] = ()
    """For a model that several pools serve: the end of each pool's interval on [0, 1), and the pool; empty for one pool."""
    fallback: tuple[Fallback, ...] = ()
    """The models that answer instead when this one cannot, in order."""

    def shared(self, key: str) -> "ModelRule":
        """The rule with one pool, chosen by hash of `key`: equal keys get the same pool."""
        if not self.shares:
            return self
        at = place(self.name, key)
        pool = next((pool for end, pool in self.shares if at < end), self.shares[-1][1])
        return ModelRule(self.name, pool, self.lora, (), self.fallback)


class Layer(msgspec.Struct, frozen=True):
    """The treatment that one file sets, as fields of `TenantPolicy`: for all requests, by project and by model."""

    base: Mapping[str, Any]
    for_project: Mapping[str, Mapping[str, Any]]
    for_model: Mapping[str, Mapping[str, Any]]


class TenantPolicy(msgspec.Struct, frozen=True):
    """One tenant's policy; `tenant` is `*` in the default policy."""

    tenant: str
    models: Mapping[str, ModelRule]
    """By public name; read-only. An alias maps to the rule of the model that it stands for."""
    routing: Routing
    expose_headers: bool
    max_output_tokens: int
    """Output tokens per choice, for requests without a cap of their own."""
    layers: tuple[Layer, ...] = ()
    """The default policy's layer and the tenant's own, when one of them has overrides by project or model; else none."""
    statistical: bool = False
    """Whether output is reserved by the usual length of answers (a quantile), not by their maximum."""
    priority: float = 0.0
    """Weight of the tenant's requests in routing, -1 to 1."""
    ttft_slo_s: float | None = None
    """The tenant's SLO of time to first token, in seconds."""
    tpot_slo_s: float | None = None
    """The tenant's SLO of time per output token, in seconds."""
    max_wait_s: float | None = None
    """Longest time in the queue, in seconds; None for that of the request's class."""
    deadline_s: float | None = None
    """Seconds from the last byte of a request to the end of its answer, at most."""
    priority_class: Class = Class.DEFAULT
    """The highest priority class of the tenant's requests."""
    parameters: Parameters | None = None
    """Bounds and defaults of request parameters; None for no bounds and no defaults."""
    caps: RequestCaps = USUAL_CAPS
    """The most of each thing that one request may hold."""
    widest_caps: RequestCaps = USUAL_CAPS
    """The caps under which a request is read before its model is known: of all projects, models and rules, the largest value of each. The
    same object as `caps` where nothing differs."""
    body_caps: tuple[int | None, ...] = ()
    """The sizes of the body that projects, models and rules allow; None for that of the settings. Empty where no level says one."""
    image_urls: ImageUrls | None = None
    """The hosts from which images are fetched; None for none."""
    may_fetch_images: bool = False
    """Whether any project, model or rule fetches images, so that requests are read with URLs in them."""
    cache: CachePolicy | None = None
    """How answers are cached; None for not at all."""
    responses: ResponsesPolicy | None = None
    """How Responses are stored; None for not at all."""
    traces: TracePolicy | None = None
    """Which requests are traced; None for as the settings say."""
    request_log: RequestLogPolicy | None = None
    """Which texts of finished requests are kept, and how long requests are; None for no texts."""
    degrade: tuple[Step, ...] = ()
    """Steps of graceful degradation, before requests wait long or are refused for overload."""
    show_prices: bool = False
    """Whether the model list has the prices."""
    end_revoked: bool = False
    """Whether running answers end when the caller's key is no longer valid."""
    choose_arm: bool = False
    """Whether requests may choose the arm (canary or baseline) of a rollout."""

    guards: GuardLevels | None = None
    """The guard rules of all levels, the same object whatever the treatment; None where no level has any."""
    rules: RuleBook | None = None
    """Overrides for requests that match; None for no rules."""
    prompts: Mapping[str, AllowedVersions] = _NO_PROMPTS
    """The tenant's prompts by id; read-only."""

    def treating(self, project: str, model: str) -> "TenantPolicy":
        """The policy for requests of a project for a model. Later settings replace earlier ones: first the default policy, then the
        tenant's own file; within each first those for all requests, then the project's, then the model's."""
        if not any(project in layer.for_project or model in layer.for_model for layer in self.layers):
            return self
        fields: dict[str, Any] = {}
        for layer in self.layers:
            fields |= layer.base
            fields |= layer.for_project.get(project, _NOTHING)
            fields |= layer.for_model.get(model, _NOTHING)
        return msgspec.structs.replace(self, **fields)


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class PolicySet(msgspec.Struct, frozen=True, eq=False):
    """Every active policy; immutable: a reload replaces the whole set."""

    by_tenant: Mapping[str, TenantPolicy]
    """The policies of tenants that have one of their own; read-only."""
    everyone: TenantPolicy | None
    """The default policy, of every other tenant; None for none."""
    digest: str
    """The first hexadecimal digits of SHA-256 over the content: same content, same digest, whatever its order. Access records carry it."""
    warnings: tuple[Problem, ...] = ()
    """What loads and is hardly meant, by file and line; no part of the digest."""
    places: Mapping[str, Located] = MappingProxyType({})
    """The file of each tenant that has a policy of its own, for messages; empty where the policies were read from no files."""

    def for_tenant(self, tenant: str) -> TenantPolicy | None:
        """The tenant's own policy, else the default policy, else None: no model exists for the tenant. One look-up."""
        return self.by_tenant.get(tenant, self.everyone)

    def prompts_for(self, tenant: str) -> Mapping[str, AllowedVersions]:
        """A tenant's prompts by id."""
        policy = self.for_tenant(tenant)
        return _NO_PROMPTS if policy is None else policy.prompts

    def models(self) -> list[str]:
        """The public model names of all policies, sorted."""
        return sorted({name for policy in self.policies() for name in policy.models})

    def policies(self) -> list[TenantPolicy]:
        """All policies, sorted by tenant, the default policy last."""
        return [*self.by_tenant.values(), *([self.everyone] if self.everyone else [])]


def compiled(documents: Iterable[PolicyDocument], prompts: Registry = MappingProxyType({})) -> PolicySet:
    """The policy set of validated documents, which `policies.load` has checked for distinct tenants and model names, and of all prompts.

    Raises:
        RuleUnusable: a guard rule names something that there is not; `policies.load` has looked for that, too.
    """
    ordered = sorted(documents, key=lambda document: document.tenant)
    everyone = next((document for document in ordered if document.tenant == EVERYONE), None)
    by_tenant = {document.tenant: _policy(document, everyone, prompts) for document in ordered}
    default_policy = by_tenant.pop(EVERYONE, None)
    return PolicySet(MappingProxyType(by_tenant), default_policy, _digest(ordered, prompts))


def _digest(ordered: list[PolicyDocument], prompts: Registry) -> str:
    content: list[Any] = sorted([prompt.name, prompt.digest] for versions in prompts.values() for prompt in versions.values())
    for document in ordered:
        written = document.model_dump(mode="json", exclude_unset=True)
        if "models" in written:
            written["models"].sort(key=lambda entry: entry["name"])
        content.append(written)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS]


def _policy(document: PolicyDocument, everyone: PolicyDocument | None, prompts: Registry) -> TenantPolicy:
    above = [] if everyone is None or everyone is document else [everyone]
    entries = next((source.models for source in (document, *above) if "models" in source.model_fields_set), [])
    models = _model_rules(entries)
    layers = tuple(_layer(source, models) for source in (*above, document))
    fields: dict[str, Any] = {}
    for layer in (_layer(_DEFAULTS, models, every_field=True), *layers):
        fields |= layer.base
    written = next((source.rules for source in (document, *above) if "rules" in source.model_fields_set), [])
    all_rules = [_compiled_rule(entry, models) for entry in written]
    # inherited rules are left out when the tenant does not have their target, or none of the models that they match
    rules = [rule for rule in all_rules if (not rule.model or rule.model in models) and (not rule.models or rule.models & models.keys())]
    names = {rule.name for rule in rules}
    allowed = next((source.prompts for source in (document, *above) if "prompts" in source.model_fields_set), [])
    caps = [fields["caps"], *_set_beside("caps", layers, rules)]
    bodies = {each.body_bytes for each in caps}
    differing = any(layer.for_project or layer.for_model for layer in layers)
    return TenantPolicy(
        tenant=document.tenant,
        models=models,
        layers=layers if differing else (),
        rules=RuleBook(rules, document.tenant) if rules else None,
        prompts=allowed_of(allowed, prompts),
        widest_caps=widest(caps),
        may_fetch_images=any((fields["image_urls"], *_set_beside("image_urls", layers, rules))),
        body_caps=() if bodies == {None} else tuple(bodies),
        guards=guard_levels((*above, document), [entry for entry in written if entry.name in names]),
        **fields,
    )


def _set_beside(field: str, layers: Iterable[Layer], rules: Iterable[Rule]) -> Iterator[Any]:
    """The values of a field that projects, models and rules set."""
    overrides = [override for layer in layers for override in (*layer.for_project.values(), *layer.for_model.values())]
    return (override[field] for override in (*overrides, *(rule.overrides for rule in rules)) if field in override)


def _compiled_rule(entry: RuleEntry, models: Mapping[str, ModelRule]) -> Rule:
    # a rule for an alias matches the model it stands for: the alias of a request is resolved before the rules are evaluated
    names = frozenset(models[name].name for name in entry.models if name in models) or frozenset(entry.models)
    fields = _fields_of(entry.then, models, entry.then.model_fields_set)
    return Rule(entry.name, names, entry.if_, entry.share, entry.then.model or "", fields)


def _model_rules(entries: Iterable[ModelEntry]) -> Mapping[str, ModelRule]:
    written = {entry.name: entry for entry in entries}
    rules = {}
    for name in written:
        rules[name] = _model_rule(_alias_target(name, written), written)
    return MappingProxyType(rules)


def _alias_target(name: str, written: Mapping[str, ModelEntry]) -> ModelEntry:
    entry = written[name]
    while entry.alias_of is not None:
        entry = written[entry.alias_of]
    return entry


def _model_rule(entry: ModelEntry, written: Mapping[str, ModelEntry]) -> ModelRule:
    lora = entry.lora or ""
    chain = tuple(Fallback(_alias_target(fallback.to, written).name, frozenset(fallback.on)) for fallback in entry.fallback or ())
    if entry.pools is None:
        assert entry.pool is not None
        return ModelRule(entry.name, entry.pool, lora, (), chain)
    whole = sum(weighted.weight for weighted in entry.pools)
    ends = accumulate(weighted.weight / whole for weighted in entry.pools)
    shares = tuple((end, weighted.pool) for end, weighted in zip(ends, entry.pools, strict=True))
    return ModelRule(entry.name, entry.pools[0].pool, lora, shares, chain)


def _layer(document: PolicyDocument, models: Collection[str], *, every_field: bool = False) -> Layer:
    return Layer(
        _fields_of(document, models, Treatment.model_fields if every_field else document.model_fields_set),
        {name: _fields_of(treatment, models, treatment.model_fields_set) for name, treatment in document.for_project.items()},
        {name: _fields_of(treatment, models, treatment.model_fields_set) for name, treatment in document.for_model.items()},
    )


_DEFAULTS: Final = PolicyDocument(tenant=EVERYONE)

_CompileField = Callable[[Any], Any]
_COMPILED_FIELDS: Final[Mapping[str, tuple[str, _CompileField]]] = {
    "routing": ("routing", routing_of),
    "parameters": ("parameters", parameters_of),
    "caps": ("caps", caps_of),
    "output_reservation": ("statistical", lambda written: written == "statistical"),
    "class_": ("priority_class", CLASSES.__getitem__),
}
"""The compiled field's name and the compile function, of fields whose compiled value has another name or form."""


def _fields_of(written: Treatment, models: Collection[str], names: Collection[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in names:
        if name == "degrade":
            steps = ladder_of(written.degrade, models)
            # steps of an inherited ladder that lead to models the tenant does not have are left out
            fields[name] = tuple(step for step in steps if not isinstance(step, Smaller) or step.model in models)
        elif name in Treatment.model_fields and name != "guards":  # they add up, and are joined by `policies.guards`
            field, compile_field = _COMPILED_FIELDS.get(name, (name, None))
            value = getattr(written, name)
            fields[field] = value if compile_field is None else compile_field(value)
    return fields
