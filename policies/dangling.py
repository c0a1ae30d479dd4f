"""Dangling and circular references in a policy: models, pools, adapters, aliases. Reads the data as written, so that other mistakes in the
file hide none of these."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from policies.fallback import fallback_problems
from policies.ladder import ladder_problems
from policies.located_yaml import Located
from policies.problems import Problem
from policies.rules import rule_problems

MAX_NAMED: Final = 10
"""Names listed in a hint."""


def dangling(
    located: Located, everyone: Located | None, pools: Collection[str] | None, loras: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """A problem for each dangling, doubled or circular reference of one file.

    Args:
        everyone: the file of the tenant `*`, whose models a file without `models` inherits; None when there is none.
        pools: names of the pools; None when they are not known, so that references to pools are not checked.
        loras: adapters by pool.
    """
    names = _names(located)
    yield from _listed_twice(located)
    for i in range(_count(located.value("models"))):
        yield from _targets(located, i, pools, loras)
    yield from _aliases(located, names)
    yield from fallback_problems(located, names, suggestion)
    inherits = located.value("models") is None and everyone is not None
    known = set(_names(everyone)) if inherits and everyone is not None else set(names)
    overrides = located.value("for_model")
    for name in overrides if isinstance(overrides, dict) else ():
        if isinstance(name, str) and name not in known:
            yield located.problem(("for_model", name), f"this policy has no model {name!r}", suggestion(name, known))
    yield from rule_problems(located, dict.fromkeys(known), suggestion)
    rules = [("rules", i, "then") for i in range(_count(located.value("rules")))]
    for path in ((), *rules, *_treatments(located, "for_project"), *_treatments(located, "for_model")):
        yield from ladder_problems(located, path, known, suggestion)


def suggestion(name: str, known: Collection[str], otherwise: str = "there are: none") -> str:
    """A hint: the known name closest to `name`, else the first known names; `otherwise` when none is known."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not known:
        return otherwise
    return f"there are: {', '.join(sorted(known)[:MAX_NAMED])}{', …' if len(known) > MAX_NAMED else ''}"


def _count(entries: object) -> int:
    return len(entries) if isinstance(entries, list) else 0


def _names(located: Located) -> dict[str, int]:
    """Index in `models` of the first entry of each name."""
    names: dict[str, int] = {}
    for i in range(_count(located.value("models"))):
        name = located.value("models", i, "name")
        if isinstance(name, str):
            names.setdefault(name, i)
    return names


def _treatments(located: Located, key: str) -> Iterator[tuple[str, str]]:
    overrides = located.value(key)
    for name in overrides if isinstance(overrides, dict) else ():
        if isinstance(name, str):
            yield key, name


def _listed_twice(located: Located) -> Iterator[Problem]:
    first = _names(located)
    for i in range(_count(located.value("models"))):
        name = located.value("models", i, "name")
        if isinstance(name, str) and first[name] != i:
            yield located.problem(("models", i, "name"), f"{name!r} is listed twice", "keep one")


def _targets(located: Located, i: int, pools: Collection[str] | None, loras: Mapping[str, Collection[str]]) -> Iterator[Problem]:
    if pools is None:
        return
    at = ("models", i)
    places = [(*at, "pools", j, "pool") for j in range(_count(located.value(*at, "pools")))]
    lora = located.value(*at, "lora")
    seen: set[str] = set()
    for path in ((*at, "pool"), *places):
        pool = located.value(*path)
        if not isinstance(pool, str):
            continue
        if pool not in pools:
            yield located.problem(path, f"there is no pool {pool!r}", suggestion(pool, pools))
        elif isinstance(lora, str) and lora not in loras.get(pool, ()):
            hint = suggestion(lora, loras.get(pool, ()), "write it under loras of that pool")
            yield located.problem((*at, "lora"), f"the pool {pool!r} has no adapter {lora!r}", hint)
        elif pool in seen:
            yield located.problem(path, f"{pool!r} is listed twice", "keep one, with the weight of both")
        seen.add(pool)


def _aliases(located: Located, names: Mapping[str, int]) -> Iterator[Problem]:
    """Aliases of unknown models, and circles of aliases; each circle is reported once, where it is written first."""
    checked: set[str] = set()
    for name, i in names.items():
        at = ("models", i, "alias_of")
        to = located.value(*at)
        if isinstance(to, str) and to not in names:
            yield located.problem(at, f"this policy has no model {to!r}", suggestion(to, [model for model in names if model != name]))
        walked = [name]
        while isinstance(to, str) and to in names and to not in walked and to not in checked:
            walked.append(to)
            to = located.value("models", names[to], "alias_of")
        if isinstance(to, str) and to in walked:
            circle = " -> ".join((*walked[walked.index(to) :], to))
            yield located.problem(at, f"leads back to itself: {circle}", "let one of them name a pool")
        checked.update(walked)
