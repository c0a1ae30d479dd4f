"""What its tenant's policy says of one request: the model that answers, the rule it comes under, how it is treated. Pure."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from domain.ask import Ask
from domain.identity import Caller
from gateway.admission import TOOLS, exists_for
from policies.compile import ModelRule, PolicySet, TenantPolicy
from policies.conditions import Needs
from policies.rules import Rule
from tenancy.estimate import likely_prompt
from tenancy.rights import Allowed

SECRET: Final = frozenset({b"authorization", b"proxy-authorization", b"x-api-key", b"cookie"})
"""Headers that conditions are not shown."""
NO_MODEL: Final = ModelRule("", "")
"""Stands for a model that the policy does not have."""


class Asked(msgspec.Struct, frozen=True):
    """A request as rules see it."""

    ask: Ask
    caller: Caller
    user: str
    headers: Mapping[bytes, bytes]
    now_unix: float
    model: str = ""
    """What the model means; known once its policy is."""

    def facts(self, needs: Needs) -> dict[str, Any]:
        """Values of `policies.conditions.VARIABLES`, those that are needed."""
        found = {name: _FACTS[name](self) for name in needs.variables if name != "headers"}
        if "headers" in needs.variables:
            found["headers"] = self._headers(needs.headers)
        return found

    def _headers(self, names: frozenset[str] | None) -> dict[str, str]:
        there = self.headers
        if names is not None:
            return {name: there[code].decode("latin-1") for name, code in _coded(names) if code in there}
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in there.items() if name not in SECRET}


@lru_cache(maxsize=4096)
def _coded(names: frozenset[str]) -> tuple[tuple[str, bytes], ...]:
    """Names of headers that conditions are shown, and how requests have them."""
    coded = ((name, name.encode("latin-1", "replace")) for name in sorted(names))
    return tuple((name, code) for name, code in coded if code not in SECRET)


class Governed(msgspec.Struct, frozen=True):
    """What holds for a request."""

    policy: TenantPolicy
    model: ModelRule
    """What the model means, dealt out to one pool."""
    rule: str = ""
    """The rule that it came under; empty for none."""


def governed(policies: PolicySet, asked: Asked, allowed: Allowed, key: str) -> Governed | None:
    """What a tenant's policy says of a request; None: the model does not exist for the caller.

    Args:
        key: what the request is dealt out by.
    """
    policy = policies.for_tenant(asked.caller.tenant)
    meant = policy.models.get(asked.ask.model) if policy is not None else None
    # rights are asked about a model that is not there as well, so that nobody can tell by time which of the two it is (R15)
    if not exists_for(allowed, NO_MODEL if meant is None else meant) or policy is None or meant is None:
        return None
    rule = _rule_of(policy, meant, asked, allowed, key) if policy.rules is not None else None
    if rule is not None and rule.model:
        meant = policy.models[rule.model]
    return _treated(policy, meant, rule, asked, key)


def governed_instead(policies: PolicySet, asked: Asked, model: str, rule: str, allowed: Allowed, key: str) -> Governed | None:
    """What the same policy says of the same request where another of its models answers; the rule that it came under stays. None: the
    caller may not use that model.

    Args:
        rule: the rule's name; empty for none.
    """
    policy = policies.for_tenant(asked.caller.tenant)
    assert policy is not None
    if not exists_for(allowed, policy.models[model]):
        return None
    came_under = next((one for one in policy.rules.rules if one.name == rule), None) if policy.rules is not None and rule else None
    return _treated(policy, policy.models[model], came_under, asked, key)


def _treated(policy: TenantPolicy, meant: ModelRule, rule: Rule | None, asked: Asked, key: str) -> Governed:
    if policy.layers:
        policy = policy.treating(asked.caller.project, meant.name)
    if rule is not None and rule.said:
        policy = msgspec.structs.replace(policy, **rule.said)
    return Governed(policy, meant.shared(key) if meant.shares else meant, "" if rule is None else rule.name)


def rules_told(policy: TenantPolicy, asked: Asked, key: str) -> Iterator[tuple[Rule, str]]:
    """Every rule of a policy and why it does not match, empty where it does; for a request whose model the policy has."""
    if policy.rules is not None:
        meant = policy.models[asked.ask.model].name
        yield from policy.rules.told(meant, key, msgspec.structs.replace(asked, model=meant).facts)


def _rule_of(policy: TenantPolicy, meant: ModelRule, asked: Asked, allowed: Allowed, key: str) -> Rule | None:
    """The first rule that matches and whose model the caller may use."""
    assert policy.rules is not None
    asked = msgspec.structs.replace(asked, model=meant.name)
    for rule in policy.rules.matching(meant.name, key, asked.facts):
        if not rule.model or exists_for(allowed, policy.models[rule.model]):
            return rule
    return None


class _Labels(msgspec.Struct, gc=False):
    metadata: Any = None


_LABELS: Final = msgspec.json.Decoder(_Labels)


def _metadata(asked: Asked) -> dict[str, str]:
    if "metadata" not in asked.ask.names:
        return {}
    found = _LABELS.decode(asked.ask.fields).metadata
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


_FACTS: Final[Mapping[str, Callable[[Asked], Any]]] = {
    "model": lambda asked: asked.model,
    "endpoint": lambda asked: asked.ask.endpoint.word,
    "project": lambda asked: asked.caller.project,
    "key": lambda asked: "" if asked.caller.by_token else asked.caller.key_id,
    "key_tags": lambda asked: dict(asked.caller.tags),
    "user": lambda asked: asked.user,
    "session": lambda asked: asked.ask.session,
    "stream": lambda asked: asked.ask.stream,
    "prompt_tokens": lambda asked: likely_prompt(asked.ask, None),
    "max_output_tokens": lambda asked: asked.ask.max_output_tokens or 0,
    "choices": lambda asked: asked.ask.choices,
    "media": lambda asked: asked.ask.media,
    "tools": lambda asked: not TOOLS.isdisjoint(asked.ask.names),
    "metadata": _metadata,
    "now": lambda asked: datetime.fromtimestamp(asked.now_unix, UTC),
}
