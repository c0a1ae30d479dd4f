"""The match of a request with its tenant's policy: the model that answers, the rule that applies, the treatment. Pure."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from domain.ask import Ask
from domain.identity import Caller
from gateway.request.permissions import TOOLS, exists_for
from policies.compile import ModelRule, PolicySet, TenantPolicy
from policies.predicates import MINUTE
from policies.rules import Rule
from tenancy.estimate import likely_prompt
from tenancy.rights import EVERYTHING, Allowed

SECRET: Final = frozenset({b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"cookie"})
"""Headers that conditions never see."""
NO_MODEL: Final = ModelRule("", "")
"""The rule of a model that the policy does not have."""


class Asked(msgspec.Struct, frozen=True):
    """A request as the conditions of rules see it."""

    ask: Ask
    caller: Caller
    user: str
    headers: Mapping[bytes, bytes]
    now_unix: float

    def values(self, model: str) -> "ConditionValues":
        """The values of the variables of `policies.conditions.VARIABLES`.

        Args:
            model: the policy's name of the model that answers.
        """
        ask, caller = self.ask, self.caller
        values = ConditionValues(
            {
                "model": model,
                "endpoint": ask.endpoint.word,
                "project": caller.project,
                "key": "" if caller.by_token else caller.key_id,
                "user": self.user,
                "session": ask.session,
                "stream": ask.stream,
                "prompt_tokens": likely_prompt(ask, None),
                "max_output_tokens": ask.max_output_tokens or 0,
                "choices": ask.choices,
                "media": ask.media,
                "tools": not TOOLS.isdisjoint(ask.names),
                MINUTE: self.now_unix // 60,
            }
        )
        values.asked = self
        return values


class ConditionValues(dict[str, Any]):
    """The values of the variables of conditions; those that are dear are found, in `asked`, when a condition asks for them."""

    __slots__ = ("asked",)

    asked: Asked

    def __missing__(self, name: str) -> Any:
        value = self[name] = _DEAR[name](self.asked)
        return value


class VisibleHeaders(Mapping[str, str]):
    """The headers that conditions see, by name: texts, and no credentials."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self._headers = headers

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a header."""
        encoded = _encoded(name)
        value = None if encoded is None else self._headers.get(encoded)
        return default if value is None else value.decode("latin-1")

    def __getitem__(self, name: str) -> str:
        value: str | None = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._headers if name not in SECRET)

    def __len__(self) -> int:
        return sum(name not in SECRET for name in self._headers)


@lru_cache(maxsize=4096)
def _encoded(name: str) -> bytes | None:
    """The name of a header as requests write it; None for one that conditions do not see."""
    encoded = name.encode("latin-1", "replace")
    return None if encoded in SECRET else encoded


class PolicyMatch(msgspec.Struct, frozen=True):
    """The policy, the model and the rule that apply to a request."""

    policy: TenantPolicy
    """The tenant's policy with the treatment of project, model and rule."""
    model: ModelRule
    """The rule of the model that answers, with one of its pools selected."""
    rule: str = ""
    """The name of the rule that applies; empty for none."""


def match_policy(policies: PolicySet, asked: Asked, allowed: Allowed, key: str) -> PolicyMatch | None:
    """The match of a request with its tenant's policy; None where the model does not exist for the caller.

    Args:
        key: the sticky key, which decides the request's share of rules and pools.
    """
    policy = policies.by_tenant.get(asked.caller.tenant, policies.everyone)
    model = policy.models.get(asked.ask.model) if policy is not None else None
    # the rights are checked for an unknown model, too, so that response times do not tell it from a forbidden model (R15)
    may_use = allowed is EVERYTHING or exists_for(allowed, NO_MODEL if model is None else model)
    if not may_use or policy is None or model is None:
        return None
    if policy.rules is None and not policy.layers and not model.shares:
        return PolicyMatch(policy, model)
    rule = _matching_rule(policy, model, asked, allowed, key) if policy.rules is not None else None
    if rule is not None and rule.model:
        model = policy.models[rule.model]
    return _match(policy, model, rule, asked, key)


def match_fallback(policies: PolicySet, asked: Asked, model: str, rule: str, allowed: Allowed, key: str) -> PolicyMatch | None:
    """The match of a request that falls back to another model of the same policy; the rule stays. None where the caller may not use
    that model.

    Args:
        model: the name of the model to fall back to.
        rule: the name of the rule that applies to the request; empty for none.
        key: the sticky key, which decides the request's share of rules and pools.
    """
    policy = policies.for_tenant(asked.caller.tenant)
    assert policy is not None
    if not exists_for(allowed, policy.models[model]):
        return None
    matched = next((entry for entry in policy.rules.rules if entry.name == rule), None) if policy.rules is not None and rule else None
    return _match(policy, policy.models[model], matched, asked, key)


def _match(policy: TenantPolicy, model: ModelRule, rule: Rule | None, asked: Asked, key: str) -> PolicyMatch:
    """The match, with the treatment of project, model and rule in the policy, and one of the model's pools selected."""
    if policy.layers:
        policy = policy.treating(asked.caller.project, model.name)
    if rule is not None and rule.overrides:
        policy = msgspec.structs.replace(policy, **rule.overrides)
    return PolicyMatch(policy, model.shared(key) if model.shares else model, "" if rule is None else rule.name)


def explain_rules(policy: TenantPolicy, asked: Asked, key: str) -> Iterator[tuple[Rule, str]]:
    """Every rule of a policy with the reason why it does not match, empty where it does. The policy must have the request's model."""
    if policy.rules is not None:
        model = policy.models[asked.ask.model].name
        yield from policy.rules.explained(model, key, asked.values(model))


def _matching_rule(policy: TenantPolicy, model: ModelRule, asked: Asked, allowed: Allowed, key: str) -> Rule | None:
    """The first rule that matches and whose model the caller may use."""
    assert policy.rules is not None
    for rule in policy.rules.matching(model.name, key, asked.values(model.name)):
        if not rule.model or exists_for(allowed, policy.models[rule.model]):
            return rule
    return None


def _metadata(asked: Asked) -> dict[str, str]:
    metadata = asked.ask.metadata
    return {name: value for name, value in metadata.items() if isinstance(value, str)} if isinstance(metadata, dict) else {}


_DEAR: Final[Mapping[str, Callable[[Asked], Any]]] = {
    "key_tags": lambda asked: dict(asked.caller.tags),
    "headers": lambda asked: VisibleHeaders(asked.headers),
    "metadata": _metadata,
    "now": lambda asked: datetime.fromtimestamp(asked.now_unix, UTC),
}
