"""Mistakes in the `guards` of policy files: rules that cannot be used, an id at two levels, and rules that would be lost. Pure."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import msgspec

from guardrails.build import RuleUnusable
from guardrails.guard_set import GuardSet
from guardrails.policy import HELD_BYTES, DetectorRule, GuardPolicy, GuardRule
from policies.schema import EVERYONE, PolicyDocument
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem

_LEVELS: Final = ("for_project", "for_model", "rules")


class _Level(msgspec.Struct, frozen=True):
    """A place of a file where guards may stand."""

    field: str
    """`for_project`, `for_model`, `rules`, or empty for the guards of all requests."""
    name: str
    """The project, the model or the rule."""
    path: Path_
    """The path of the mapping that holds `guards`."""

    def excludes(self, other: "_Level") -> bool:
        """Whether no request has the guards of both: they are of two projects, two models or two rules."""
        return self.field == other.field and self.name != other.name


class _Place(msgspec.Struct, frozen=True):
    """A guard rule in a file."""

    located: Located
    level: _Level
    path: Path_

    def meets(self, other: "_Place") -> bool:
        """Whether both are at different levels and apply to the same requests; an id that stands twice at one level is the model's to
        refuse."""
        return not self.level.excludes(other.level) and (self.located is not other.located or self.level != other.level)

    def __str__(self) -> str:
        line, _ = self.located.positions.get(self.path, (1, 1))
        return f"{self.located.file}:{line}"


def guard_problems(located: Located, everyone: Located | None) -> Iterator[Problem]:
    """The guard rules of a file that would take the place of another one, or take it away. Reads the data as written, so that other
    mistakes in the file hide none of these.

    Args:
        everyone: the file of the tenant `*`, whose guards apply to every tenant; None when there is none.
    """
    outer = [] if everyone is None or everyone is located else list(_places(everyone, with_rules=_inherits_rules(located)))
    before: dict[str, list[_Place]] = {}
    for name, place in outer:
        before.setdefault(name, []).append(place)
    for name, place in _places(located, with_rules=True):
        first = next((other for other in before.get(name, ()) if place.meets(other)), None)
        if first is None:
            before.setdefault(name, []).append(place)
            continue
        message = f"there is a guard rule {name!r} already, at {first}, and both would apply to the same requests"
        yield located.problem((*place.path, "id"), message, "give this one another id; a rule of an outer level cannot be replaced here")
    yield from _of_aliases(located, everyone)
    if everyone is not None and everyone is not located and not _inherits_rules(located):
        yield from _lost(located, everyone)


def unusable_rules(
    document: PolicyDocument, located: Located, detectors: Collection[str] | None, suggestion: Callable[..., str]
) -> Iterator[Problem]:
    """The guard rules of a valid file of which nothing can be made ready.

    Args:
        detectors: the detectors of `tidegate.yaml`; None when they are not known, so that rules may name any.
        suggestion: makes a hint from an unknown name and the known names.
    """
    for level in _levels(located):
        guards = _guards_at(document, level)
        for at, rule in enumerate(guards.rules if guards is not None else ()):
            path = (*level.path, "guards", "rules", at)
            if isinstance(rule, DetectorRule):
                if detectors is not None and rule.detector not in detectors:
                    message = f"there is no detector {rule.detector!r} in guards.detectors of tidegate.yaml"
                    yield located.problem((*path, "detector"), message, suggestion(rule.detector, detectors, "write it there"))
                continue
            why = _why_unusable(rule)
            if why:
                text, _, hint = why.partition("; ")
                yield located.problem(path, f"the guard rule {rule.id!r} cannot be used: {text}", hint)


MAX_KNOWN: Final = 4096
"""Rules of which it is remembered whether they can be used; at the bound all are forgotten."""

_KNOWN: Final[dict[str, str]] = {}


def _why_unusable(rule: GuardRule) -> str:
    """Why nothing can be made of a rule; empty where something can. Remembered by content: many tenants have the same rules, and making one
    ready takes up to 15 ms."""
    content = rule.model_dump_json()
    why = _KNOWN.get(content)
    if why is None:
        try:
            GuardSet([rule], HELD_BYTES)
            why = ""
        except RuleUnusable as error:
            why = str(error)
        if len(_KNOWN) >= MAX_KNOWN:
            _KNOWN.clear()
        _KNOWN[content] = why
    return why


def _guards_at(document: PolicyDocument, level: _Level) -> GuardPolicy | None:
    if level.field == "rules":
        at = level.path[1]
        assert isinstance(at, int)
        return document.rules[at].then.guards
    return document.guards if not level.field else getattr(document, level.field)[level.name].guards


def _inherits_rules(located: Located) -> bool:
    return "rules" not in located.data


def _levels(located: Located, *, with_rules: bool = True) -> Iterator[_Level]:
    yield _Level("", "", ())
    for field in _LEVELS[:2]:
        overrides = located.value(field)
        for name in overrides if isinstance(overrides, dict) else ():
            if isinstance(name, str):
                yield _Level(field, name, (field, name))
    entries = located.value("rules") if with_rules else None
    for at in range(len(entries) if isinstance(entries, list) else 0):
        name = located.value("rules", at, "name")
        yield _Level("rules", name if isinstance(name, str) else str(at), ("rules", at, "then"))


def _places(located: Located, *, with_rules: bool) -> Iterator[tuple[str, _Place]]:
    """Every guard rule of a file that has an id, in the order of the levels."""
    for level in _levels(located, with_rules=with_rules):
        rules: Any = located.value(*level.path, "guards", "rules")
        for at in range(len(rules) if isinstance(rules, list) else 0):
            path = (*level.path, "guards", "rules", at)
            name = located.value(*path, "id")
            if isinstance(name, str):
                yield name, _Place(located, level, path)


def _of_aliases(located: Located, everyone: Located | None) -> Iterator[Problem]:
    """Guards of an alias: its requests have those of the model that it stands for."""
    source = everyone if located.value("models") is None and everyone is not None else located
    models = source.value("models")
    targets: dict[str, str] = {}
    for at in range(len(models) if isinstance(models, list) else 0):
        name, target = source.value("models", at, "name"), source.value("models", at, "alias_of")
        if isinstance(name, str) and isinstance(target, str):
            targets[name] = target
    for level in _levels(located, with_rules=False):
        if level.field == "for_model" and level.name in targets and located.value(*level.path, "guards") is not None:
            target = targets[level.name]
            message = f"{level.name!r} is an alias, and its requests have the guards of {target!r}"
            yield located.problem((*level.path, "guards"), message, f"write them at {target!r}, or in guards of the policy")


def _lost(located: Located, everyone: Located) -> Iterator[Problem]:
    """Guards in rules of `*`, of a tenant whose own rules take the place of those."""
    first = next((place for _, place in _places(everyone, with_rules=True) if place.level.field == "rules"), None)
    if first is not None:
        message = (
            f"would take away the guards of the rule {first.level.name!r} of {EVERYONE!r}, at {first}: a tenant's rules take the place of "
            f"those of {EVERYONE!r}"
        )
        yield located.problem(("rules",), message, f"move those guards to guards, for_project or for_model of {EVERYONE!r}")
