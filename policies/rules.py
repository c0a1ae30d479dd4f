"""`rules` of a policy file: what is otherwise for some requests of a tenant. The first one that matches counts. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from policies.conditions import Alternatives, Needs, condition, given
from policies.located_yaml import Located
from policies.problems import Path_, Problem
from policies.sticky import place

ALWAYS: Final = "true"
"""The condition of a rule without one."""


class Rule(msgspec.Struct, frozen=True):
    """One rule. Everything that it names has to hold."""

    name: str
    models: frozenset[str]
    """It is for requests for these; empty for all."""
    condition: str
    share: float
    """Of conversations, 0 to 1: those whose place is below it."""
    model: str
    """The model that answers instead; empty for the one that was asked for."""
    said: Mapping[str, Any]
    """Fields of `TenantPolicy` that it sets."""


class RuleBook:
    """A tenant's rules, sorted out by model when one is first asked for.

    Args:
        salt: tells its shares from those of other tenants.
    """

    __slots__ = ("_by_model", "_rules", "_salt")

    def __init__(self, rules: Sequence[Rule], salt: str) -> None:
        self._rules = tuple(rules)
        self._salt = salt
        self._by_model: dict[str, tuple[tuple[Rule, ...], Alternatives]] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All of them, in their order."""
        return self._rules

    def told(self, model: str, key: str, facts: Callable[[Needs], Mapping[str, Any]]) -> Iterator[tuple[Rule, str]]:
        """Every rule, and whether it matches or why not, in words. For people: each condition is asked by itself."""
        for rule in self._rules:
            if rule.models and model not in rule.models:
                yield rule, f"is for {', '.join(sorted(rule.models))}"
                continue
            asked = condition(rule.condition)
            holds = asked.holds(given(facts(asked.needs)))
            if not holds:
                yield rule, "its condition does not hold" if holds is False else "its condition asks for what the request does not have"
            elif not self._among(rule, key):
                yield rule, f"is for {100 * rule.share:.3g} % of conversations, and this is none of them"
            else:
                yield rule, ""

    def _among(self, rule: Rule, key: str) -> bool:
        return rule.share >= 1 or place(f"{self._salt}/{rule.name}", key) < rule.share

    def matching(self, model: str, key: str, facts: Callable[[Needs], Mapping[str, Any]]) -> Iterable[Rule]:
        """The rules that match, the one that counts first; what is behind it is for who may not follow it.

        Args:
            model: one of the policy's own, so that what is kept by model is bounded.
            key: what the request is dealt out by.
            facts: values of the variables that are asked for.
        """
        found = self._by_model.get(model)
        if found is None:
            rules = tuple(rule for rule in self._rules if not rule.models or model in rule.models)
            found = self._by_model[model] = rules, Alternatives([rule.condition for rule in rules])
        rules, conditions = found
        if not rules:
            return ()
        holding = conditions.holding(facts(conditions.needs))
        return (rules[at] for at in holding if self._among(rules[at], key)) if holding else ()


def rule_problems(located: Located, known: Mapping[str, Any], meant: Callable[..., str]) -> Iterator[Problem]:
    """Names that lead nowhere, and rules that no request reaches. Looks at what was written, so that other mistakes hide none of these.

    Args:
        known: the policy's models by name.
        meant: makes a hint of a name and those there are.
    """
    entries = located.value("rules")
    before: dict[str, list[tuple[int, frozenset[str]]]] = {ALWAYS: []}  # by condition
    names: dict[str, int] = {}
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        at: Path_ = ("rules", i)
        said = entry if isinstance(entry, dict) else {}
        models, then, name = said.get("models"), said.get("then"), said.get("name")
        target = then.get("model") if isinstance(then, dict) else None
        given_models = [(j, name) for j, name in enumerate(models) if isinstance(name, str)] if isinstance(models, list) else []
        for j, one in given_models:
            if one not in known:
                yield located.problem((*at, "models", j), f"this policy has no model {one!r}", meant(one, known))
        if isinstance(target, str) and target not in known:
            yield located.problem((*at, "then", "model"), f"this policy has no model {target!r}", meant(target, known))
        if isinstance(name, str) and names.setdefault(name, i) != i:
            yield located.problem((*at, "name"), f"{name!r} is a rule already", "rename one")
        covered, written, share = frozenset(one for _, one in given_models), said.get("if"), said.get("share")
        text = written.strip() if isinstance(written, str) else ALWAYS
        alike = before.setdefault(text, [])
        first = min((j for j, wide in {*before[ALWAYS], *alike} if not wide or (covered and covered <= wide)), default=None)
        if first is not None:
            yield located.problem(at, f"is never reached: rules[{first}] matches all that it would", "remove it, or put it first")
        if share is None or share == 1:
            alike.append((i, covered))
