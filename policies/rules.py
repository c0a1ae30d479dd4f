"""`rules` of a policy file: overrides for the requests of a tenant that match. The first matching rule counts. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from policies.conditions import Alternatives, activation, condition
from policies.rollout.assignment import place
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem

ALWAYS: Final = "true"
"""The condition of a rule without one."""


class Rule(msgspec.Struct, frozen=True):
    """One rule. It matches a request when the model, the condition and the share all match."""

    name: str
    models: frozenset[str]
    """The requested models that the rule matches; empty for all."""
    condition: str
    share: float
    """Share of the conversations, 0 to 1: the rule matches those whose place (`sticky.place`) is below it."""
    model: str
    """The model that answers instead; empty for the requested model."""
    overrides: Mapping[str, Any]
    """Fields of `TenantPolicy` that the rule sets, and their values."""


class RuleBook:
    """A tenant's rules; those of a model are selected at the first request for it.

    Args:
        salt: makes the tenant's shares independent of other tenants'.
    """

    __slots__ = ("_by_model", "_rules", "_salt")

    def __init__(self, rules: Sequence[Rule], salt: str) -> None:
        self._rules = tuple(rules)
        self._salt = salt
        self._by_model: dict[str, tuple[tuple[Rule, ...], Alternatives]] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, in the order of the file."""
        return self._rules

    def explained(self, model: str, key: str, values: Mapping[str, Any]) -> Iterator[tuple[Rule, str]]:
        """Every rule, and why it does not match, as text for people; empty text for a match. Each condition is evaluated by itself."""
        for rule in self._rules:
            if rule.models and model not in rule.models:
                yield rule, f"is for {', '.join(sorted(rule.models))}"
                continue
            compiled = condition(rule.condition)
            holds = compiled.holds(activation(compiled.needs.taken(values)))
            if not holds:
                yield rule, "its condition does not hold" if holds is False else "its condition asks for what the request does not have"
            elif not self._in_share(rule, key):
                yield rule, f"is for {100 * rule.share:.3g} % of conversations, and this is none of them"
            else:
                yield rule, ""

    def _in_share(self, rule: Rule, key: str) -> bool:
        return rule.share >= 1 or place(f"{self._salt}/{rule.name}", key) < rule.share

    def matching(self, model: str, key: str, values: Mapping[str, Any]) -> Iterable[Rule]:
        """The rules that match, in order. The first one counts; a caller that may not use its model takes the next.

        Args:
            model: one of the policy's own, so that the cache by model is bounded.
            key: the sticky key of the request: its conversation, else its end user, else its own id.
            values: the values of the variables, at least of those that conditions read.
        """
        applicable = self._by_model.get(model)
        if applicable is None:
            rules = tuple(rule for rule in self._rules if not rule.models or model in rule.models)
            applicable = self._by_model[model] = rules, Alternatives([rule.condition for rule in rules])
        rules, conditions = applicable
        if not rules:
            return ()
        holding = conditions.holding(values)
        return (rules[at] for at in holding if self._in_share(rules[at], key)) if holding else ()


def rule_problems(located: Located, known: Mapping[str, Any], suggestion: Callable[..., str]) -> Iterator[Problem]:
    """Rules that name an unknown model, share a name or are never reached. Reads the data as written, so that other mistakes in the file
    hide none of these.

    Args:
        known: the policy's models by name.
        suggestion: makes a hint from an unknown name and the known names.
    """
    entries = located.value("rules")
    before: dict[str, list[tuple[int, frozenset[str]]]] = {ALWAYS: []}  # by condition
    names: dict[str, int] = {}
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        at: Path_ = ("rules", i)
        fields = entry if isinstance(entry, dict) else {}
        models = fields.get("models")
        then = fields.get("then")
        name = fields.get("name")
        target = then.get("model") if isinstance(then, dict) else None
        listed_models = [(j, name) for j, name in enumerate(models) if isinstance(name, str)] if isinstance(models, list) else []
        for j, model in listed_models:
            if model not in known:
                yield located.problem((*at, "models", j), f"this policy has no model {model!r}", suggestion(model, known))
        if isinstance(target, str) and target not in known:
            yield located.problem((*at, "then", "model"), f"this policy has no model {target!r}", suggestion(target, known))
        if isinstance(name, str) and names.setdefault(name, i) != i:
            yield located.problem((*at, "name"), f"{name!r} is a rule already", "rename one")
        covered = frozenset(model for _, model in listed_models)
        written = fields.get("if")
        share = fields.get("share")
        text = written.strip() if isinstance(written, str) else ALWAYS
        same_condition = before.setdefault(text, [])
        first = min((j for j, wide in {*before[ALWAYS], *same_condition} if not wide or (covered and covered <= wide)), default=None)
        if first is not None:
            yield located.problem(at, f"is never reached: rules[{first}] matches all that it would", "remove it, or put it first")
        if share is None or share == 1:
            same_condition.append((i, covered))
