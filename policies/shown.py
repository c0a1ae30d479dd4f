"""Policies as text for people: the treatment of each tenant, and the differences between two policy sets. Nothing parses the text."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from domain.priority import WORDS
from domain.strict import Strict
from policies.caps import set_caps
from policies.compile import ModelRule, PolicySet, TenantPolicy
from policies.conditions import tags_read
from policies.fallback import in_words
from policies.guards_shown import guard_differences, guard_tags
from policies.image_urls import ImageUrls
from policies.ladder import Mark, Smaller, Step, Trim
from policies.parameters import ALWAYS as ALWAYS_ALLOWED
from policies.parameters import Parameters
from policies.prompts.allowed import AllowedVersions
from policies.rules import ALWAYS, Rule
from policies.schema import EVERYONE
from tenancy.keys import OWN_TAG

ALL: Final = ""
"""The project, or the model, of a treatment that holds for all of them."""


def treatment(policy: TenantPolicy) -> dict[str, str]:
    """The treatment of a policy's requests as text, by the names that policy files use."""
    return {name: _of_field(name, value) for name, value in _fields(policy).items()}


def meaning(name: str, rule: ModelRule) -> str:
    """The target of a public model name as text: the model of an alias, or the pools, adapter and fallbacks."""
    if name != rule.name:
        return f"{name} = {rule.name}"
    ends = (0.0, *(end for end, _ in rule.shares))
    parts = [f"{100 * (end - begin):.3g} % {pool}" for begin, (end, pool) in zip(ends, rule.shares, strict=False)]
    chain = f", else {in_words(rule.fallback)}" if rule.fallback else ""
    return f"{name} -> {', '.join(parts) or rule.pool}" + (f" with {rule.lora}" if rule.lora else "") + chain


def prompt_in_words(prompt: AllowedVersions) -> str:
    """A prompt of a tenant as text: its one version, or each version with its share of the conversations."""
    ends = (0.0, *(end for end, _ in prompt.shares))
    parts = [f"{100 * (end - begin):.3g} % {prompt.id}@{version}" for begin, (end, version) in zip(ends, prompt.shares, strict=False)]
    return ", ".join(parts) if len(parts) > 1 else f"{prompt.id}@{prompt.shares[0][1]}"


def rule_in_words(rule: Rule) -> str:
    """A rule as text, without its name: the requests that it matches, and its overrides."""
    parts = [f"for {', '.join(sorted(rule.models))}"] if rule.models else []
    parts += [f"if {rule.condition}"] if rule.condition != ALWAYS else []
    parts += [f"for {100 * rule.share:.3g} % of conversations"] if rule.share < 1 else []
    then = [f"model {rule.model}"] if rule.model else []
    then += [f"{_NAMES.get(name, name)} {_of_field(name, value)}" for name, value in rule.overrides.items()]
    return f"{' '.join(parts) or 'always'}: {', '.join(then) or 'guard rules'}"


def tag_report(policies: PolicySet) -> tuple[list[str], list[str]]:
    """The key tags that rules and guard rules read and that only owners and admins set, sorted; and a sentence on each rule that also
    depends on tags which tenant-admins set."""
    reserved = guard_tags(policies)
    sentences: dict[tuple[str, str], str] = {}
    for policy in policies.policies():
        for rule in policy.rules.rules if policy.rules is not None else ():
            names = tags_read(rule.condition)
            own = sorted(name for name in names or () if name.startswith(OWN_TAG))
            reserved.update(name for name in names or () if not name.startswith(OWN_TAG))
            place = f"rule {rule.name} of {'everyone else' if policy.tenant == EVERYONE else policy.tenant}"
            if names is None:
                sentence = (
                    f"{place} reads key tags by names that are not written out, so also those that tenant-admins set ({OWN_TAG}…); "
                    'write key_tags["name"]'
                )
            elif own:
                sentence = f"{place} reads the key tag {own[0]}, which tenant-admins set on their own keys; take a name without {OWN_TAG!r}"
            else:
                continue
            sentences.setdefault((rule.name, rule.condition), sentence)  # tenants inherit rules of the default policy
    return sorted(reserved), list(sentences.values())


def differences(before: PolicySet, after: PolicySet) -> Iterator[str]:
    """One line per change of a tenant's policy from `before` to `after`; none when both mean the same, however they are written."""
    old, new = ({policy.tenant: policy for policy in policy_set.policies()} for policy_set in (before, after))
    for tenant in sorted(old.keys() | new.keys()):
        subject = "everyone else" if tenant == EVERYONE else tenant
        if tenant in old and tenant not in new:
            yield f"{subject}: no policy any more" + ("" if EVERYONE not in new or tenant == EVERYONE else "; that of everyone else counts")
        elif tenant not in old:
            yield f"{subject}: a policy of its own, with {len(new[tenant].models)} models"
        else:
            yield from _of_tenant(subject, old[tenant], new[tenant])


def _of_tenant(subject: str, old: TenantPolicy, new: TenantPolicy) -> Iterator[str]:
    for name in sorted(old.models.keys() | new.models.keys()):
        was, now = (meaning(name, policy.models[name]) if name in policy.models else "" for policy in (old, new))
        if was != now:
            both = f"{was} becomes {now}" if now else f"{name} removed"
            yield f"{subject}: model {both if was else f'{now} added'}"
    changed = dict(_changes(treatment(old), treatment(new)))
    for name, words in changed.items():
        yield f"{subject}: {name} {words}"
    for where, project, model in _levels(old, new):
        before, after = (treatment(policy.treating(project, model)) for policy in (old, new))
        for name, words in _changes(before, after):
            if changed.get(name) != words:
                yield f"{subject}, {where}: {name} {words}"
    yield from _of_rules(subject, old, new)
    yield from guard_differences(subject, old.guards, new.guards)
    yield from _of_prompts(subject, old, new)


def _of_prompts(subject: str, old: TenantPolicy, new: TenantPolicy) -> Iterator[str]:
    for name in sorted(old.prompts.keys() | new.prompts.keys()):
        was, now = (prompt_in_words(policy.prompts[name]) if name in policy.prompts else "" for policy in (old, new))
        if was != now:
            both = f"{was} becomes {now}" if now else f"{name} removed"
            yield f"{subject}: prompt {both if was else f'{now} added'}"
        if was and now:
            before = old.prompts[name].versions
            after = new.prompts[name].versions
            for version in sorted(before.keys() & after.keys()):
                if before[version].digest != after[version].digest:
                    yield f"{subject}: prompt {after[version].name} says something else"


def _levels(*policies: TenantPolicy) -> Iterator[tuple[str, str, str]]:
    layers = [layer for policy in policies for layer in policy.layers]
    for project in sorted({name for layer in layers for name in layer.for_project}):
        yield f"project {project}", project, ALL
    for model in sorted({name for layer in layers for name in layer.for_model}):
        yield f"model {model}", ALL, model


def _of_rules(subject: str, old: TenantPolicy, new: TenantPolicy) -> Iterator[str]:
    was, now = ({rule.name: rule_in_words(rule) for rule in (policy.rules.rules if policy.rules else ())} for policy in (old, new))
    for name in [*was, *(name for name in now if name not in was)]:
        if name not in now:
            yield f"{subject}: rule {name} removed"
        elif name not in was:
            yield f"{subject}: rule {name} added, {now[name]}"
        elif was[name] != now[name]:
            yield f"{subject}: rule {name} becomes {now[name]} (was {was[name]})"
    common = [name for name in was if name in now]
    if common != [name for name in now if name in was]:
        yield f"{subject}: the rules' order becomes {', '.join(now)}"


def _changes(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in was:
        if was[name] != now[name]:
            yield name, f"{was[name]} -> {now[name]}"


_NAMES: Final[Mapping[str, str]] = {"statistical": "output_reservation", "priority_class": "class"}


def _fields(policy: TenantPolicy) -> dict[str, Any]:
    return {_NAMES.get(name, name): getattr(policy, name) for name in policy.__struct_fields__ if name not in _NO_TREATMENT}


_NO_TREATMENT: Final = frozenset(
    {"tenant", "models", "layers", "rules", "prompts", "widest_caps", "body_caps", "may_fetch_images", "guards"}
)


def _of_field(name: str, value: Any) -> str:
    name = _NAMES.get(name, name)
    if name == "class":
        return str(WORDS[value])
    if name == "output_reservation":
        return "statistical" if value else "strict"
    if name == "routing":
        return str(value.policy) if value.key == value.policy else str(value.key)
    if name == "parameters":
        return _parameters(value)
    if name == "caps":
        return ", ".join(f"{cap} {most}" for cap, most in set_caps(value).items()) or "the usual"
    if name == "image_urls":
        return "refused" if value is None else _image_urls(value)
    if name == "degrade":
        return ", ".join(map(_step, value)) or "none"
    if isinstance(value, Strict):
        return ", ".join(f"{member} {json.dumps(written)}" for member, written in value.model_dump(mode="json").items())
    return "none" if value is None else json.dumps(value)


def _parameters(value: Parameters | None) -> str:
    if value is None:
        return "as they come"
    parts = [f"{name} {default.decode()} by default" for name, default in value.defaults]
    parts += [f"{name} at most {bound:g}" for name, bound in value.at_most]
    parts += [f"no {name}" for name in sorted({*value.refused, *value.refused_members})]
    parts += [f"{name} opened" for name in sorted(value.opened)]
    if value.allowed is not None:
        narrowed = {path.partition(".")[0] for path in value.allowed_members}
        parts.append(f"only {' '.join(sorted((value.allowed - ALWAYS_ALLOWED - narrowed) | value.allowed_members)) or 'the usual'}")
    return ", ".join(parts)


def _image_urls(value: ImageUrls) -> str:
    return f"from {', '.join(value.hosts)}: {value.max_images} of {value.max_bytes} bytes within {value.within_s:g} s"


def _step(step: Step) -> str:
    if isinstance(step, Mark):
        return step.value
    action = f"trim_output_tokens {step.output_tokens}" if isinstance(step, Trim) else _smaller(step)
    return action + (f" after {step.after_s:g} s" if step.after_s else "")


def _smaller(step: Smaller) -> str:
    return f"model {step.model} for {', '.join(sorted(step.of)) or 'nobody'}"
