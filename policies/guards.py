"""`guards` at every level of the policies: the rules that apply to a request, those of outer levels first. Pure.

Other fields of an inner level replace those of an outer one; guard rules add up:

    rules of a request = those of `*`, of its project and model there, of the tenant, of the project, of the model, of the rule that matches

An inner level removes and changes nothing, because an id at two levels that can apply together does not load (`policies.guard_checks`). Of
the bounds on held text the smallest counts. A rule with `default_on: false` applies where a key or a request asks for it.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from types import MappingProxyType
from typing import Final, get_args
from weakref import WeakValueDictionary

import msgspec

from guardrails.guard_set import GuardSet
from guardrails.policy import HELD_BYTES, Direction, GuardPolicy, GuardRule
from policies.schema import PolicyDocument, RuleEntry, Treatment

MAX_READY: Final = 64
"""Combinations of levels of one policy whose rules are made ready when the policy is loaded; those beyond are made ready when a request
needs them first, which takes milliseconds."""

MAX_KEPT: Final = 1024
"""Combinations of levels of one policy that are kept. At the bound the oldest is dropped, and joined again when it is needed."""

MAX_ADDITIONS: Final = 64
"""Sets of rules that keys and requests ask for, kept for each combination of levels; the oldest is dropped at the bound."""

NOT_ASKED: Final[frozenset[str]] = frozenset()


class GuardLayer(msgspec.Struct, frozen=True):
    """The guards that one file sets: for all requests, by project and by model."""

    tenant: str
    """The tenant of the file; `*` for the default policy."""
    all_requests: GuardPolicy | None
    for_project: Mapping[str, GuardPolicy]
    for_model: Mapping[str, GuardPolicy]


class GuardChoice:
    """The guard rules of one combination of levels.

    Args:
        rules: of all levels, outer levels first; each id stands once.
        held_bytes: the smallest bound that a level sets.
    """

    __slots__ = ("_made", "_to_be_asked_for", "held_bytes", "ids", "rules")

    def __init__(self, rules: Sequence[GuardRule], held_bytes: int) -> None:
        self.rules: Final = tuple(rules)
        self.held_bytes: Final = held_bytes
        self.ids: Final = frozenset(rule.id for rule in self.rules)
        """The rules that a request may ask for: those that apply anyway are among them."""
        self._to_be_asked_for = frozenset(rule.id for rule in self.rules if not rule.default_on)
        self._made: dict[frozenset[str], GuardSet | None] = {}

    def applied(self, asked: frozenset[str] = NOT_ASKED) -> GuardSet | None:
        """The rules that apply, made ready; None for no rules.

        Args:
            asked: ids of rules that the key or the request asks for; others than those of this combination add nothing.
        """
        asked &= self._to_be_asked_for
        made = self._made.get(asked)
        if made is None and asked not in self._made:
            if len(self._made) > MAX_ADDITIONS:
                del self._made[next(names for names in self._made if names)]  # the set that needs no asking stays
            rules = [rule for rule in self.rules if rule.default_on or rule.id in asked]
            made = self._made[asked] = shared_set(rules, self.held_bytes) if rules else None
        return made


NO_RULES: Final = GuardChoice((), HELD_BYTES)
"""The rules where no level has any."""


class GuardLevels:
    """The guards of one tenant's policy, at all levels.

    Args:
        layers: the default policy's, and the tenant's own.
        by_rule: the guards of the policy's rules (`then`), by the rule's name.

    Raises:
        RuleUnusable: a rule names something that there is not.
    """

    __slots__ = ("_by_rule", "_choices", "_layers", "_models", "_projects")

    def __init__(self, layers: Sequence[GuardLayer], by_rule: Mapping[str, GuardPolicy]) -> None:
        self._layers = tuple(layers)
        self._by_rule = by_rule
        self._projects = frozenset(name for layer in layers for name in layer.for_project)
        self._models = frozenset(name for layer in layers for name in layer.for_model)
        self._choices: dict[tuple[str, str, str], GuardChoice] = {}
        for project, model, rule in islice(self.combinations(), MAX_READY):
            ready = self.of(project, model, rule).applied()
            if ready is not None:
                for direction in get_args(Direction):
                    ready.chain(direction)

    def of(self, project: str, model: str, rule: str) -> GuardChoice:
        """The rules for requests of a project for a model that a rule of the policy matches.

        Args:
            model: the model's own name, not an alias.
            rule: the name of the rule of the policy; empty for none.
        """
        names = (
            project if project in self._projects else "",
            model if model in self._models else "",
            rule if rule in self._by_rule else "",
        )
        choice = self._choices.get(names)
        if choice is None:
            if len(self._choices) >= MAX_KEPT:
                del self._choices[next(iter(self._choices))]
            choice = self._choices[names] = _joined([guards for _, guards in self.applying(*names)])
        return choice

    def places(self) -> dict[str, GuardPolicy]:
        """The guards of every level, by the level in words."""
        return {words: guards for project, model, rule in self._singles() for words, guards in self.applying(project, model, rule)}

    def _singles(self) -> Iterator[tuple[str, str, str]]:
        yield "", "", ""
        yield from ((project, "", "") for project in sorted(self._projects))
        yield from (("", model, "") for model in sorted(self._models))
        yield from (("", "", rule) for rule in self._by_rule)

    def combinations(self) -> Iterator[tuple[str, str, str]]:
        """Every project, model and rule whose guards can apply together; empty names for requests without guards of their own there."""
        return product(("", *sorted(self._projects)), ("", *sorted(self._models)), ("", *self._by_rule))

    def applying(self, project: str, model: str, rule: str) -> Iterator[tuple[str, GuardPolicy]]:
        """The guards of each level that applies, outer levels first, with the level in words."""
        for layer in self._layers:
            whose = layer.tenant
            levels = (
                (whose, layer.all_requests),
                (f"{whose}, project {project}", layer.for_project.get(project)),
                (f"{whose}, model {model}", layer.for_model.get(model)),
            )
            for words, guards in levels:
                if guards is not None:
                    yield words, guards
        if rule in self._by_rule:
            yield f"rule {rule}", self._by_rule[rule]


def guard_levels(documents: Iterable[PolicyDocument], rules: Iterable[RuleEntry]) -> GuardLevels | None:
    """The guards of a tenant's policy; None where no level has any.

    Args:
        documents: the default policy, and the tenant's own.
        rules: the rules of the policy that counts.

    Raises:
        RuleUnusable: a rule names something that there is not.
    """
    layers = tuple(layer for document in documents if (layer := _layer(document)) is not None)
    by_rule = {entry.name: entry.then.guards for entry in rules if entry.then.guards is not None}
    return GuardLevels(layers, MappingProxyType(by_rule)) if layers or by_rule else None


def _layer(document: PolicyDocument) -> GuardLayer | None:
    for_project, for_model = _guards_of(document.for_project), _guards_of(document.for_model)
    if document.guards is None and not for_project and not for_model:
        return None
    return GuardLayer(document.tenant, document.guards, MappingProxyType(for_project), MappingProxyType(for_model))


def _guards_of(treatments: Mapping[str, Treatment]) -> dict[str, GuardPolicy]:
    return {name: treatment.guards for name, treatment in treatments.items() if treatment.guards is not None}


def _joined(levels: Collection[GuardPolicy]) -> GuardChoice:
    """The rules of levels, outer levels first."""
    if not levels:
        return NO_RULES
    bounds = [guards.held_bytes for guards in levels if "held_bytes" in guards.model_fields_set]
    return GuardChoice([rule for guards in levels for rule in guards.rules], min(bounds, default=HELD_BYTES))


_SETS: Final[WeakValueDictionary[bytes, GuardSet]] = WeakValueDictionary()
"""Sets in use by their content: tenants with the same rules share one, and a reload makes nothing again that has not changed."""


def shared_set(rules: Sequence[GuardRule], held_bytes: int) -> GuardSet:
    """The set of these rules. Equal rules get the same object as long as somebody uses it. Raises RuleUnusable."""
    content = hashlib.sha256(b"%d" % held_bytes)
    for rule in rules:
        content.update(b"\n")
        content.update(rule.model_dump_json().encode())  # JSON has no line breaks of its own, and names the kind
    key = content.digest()
    found = _SETS.get(key)
    if found is None:
        found = _SETS[key] = GuardSet(rules, held_bytes)
    return found
