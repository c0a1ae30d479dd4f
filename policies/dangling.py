"""Names in a policy that lead nowhere, or in a circle: models, pools, adapters, aliases. Looks at what was written, so that other mistakes
hide none of these."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from policies.fallback import fallback_problems
from policies.ladder import ladder_problems
from policies.located_yaml import Located
from policies.problems import Problem
from policies.rules import rule_problems

MAX_NAMED: Final = 10
"""Names in a hint."""


def dangling(
    located: Located, everyone: Located | None, pools: Collection[str] | None, loras: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """Every such name of one file.

    Args:
        everyone: the file whose models a file without any has; None where there is none.
        pools: None where they are not known.
        loras: adapters by pool.
    """
    names = _names(located)
    yield from _twice(located)
    for i in range(_count(located.value("models"))):
        yield from _targets(located, i, pools, loras)
    yield from _aliases(located, names)
    yield from fallback_problems(located, names, meant)
    inherits = located.value("models") is None and everyone is not None
    known = set(_names(everyone)) if inherits and everyone is not None else set(names)
    treated = located.value("for_model")
    for name in treated if isinstance(treated, dict) else ():
        if isinstance(name, str) and name not in known:
            yield located.problem(("for_model", name), f"this policy has no model {name!r}", meant(name, known))
    yield from rule_problems(located, dict.fromkeys(known), meant)
    rules = [("rules", i, "then") for i in range(_count(located.value("rules")))]
    for path in ((), *rules, *_treatments(located, "for_project"), *_treatments(located, "for_model")):
        yield from ladder_problems(located, path, known, meant)


def meant(name: str, known: Collection[str], otherwise: str = "there are: none") -> str:
    """A hint: the name that was probably meant, else some of those there are."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not known:
        return otherwise
    return f"there are: {', '.join(sorted(known)[:MAX_NAMED])}{', …' if len(known) > MAX_NAMED else ''}"


def _count(entries: object) -> int:
    return len(entries) if isinstance(entries, list) else 0


def _names(located: Located) -> dict[str, int]:
    """Where in `models` each name stands first."""
    names: dict[str, int] = {}
    for i in range(_count(located.value("models"))):
        name = located.value("models", i, "name")
        if isinstance(name, str):
            names.setdefault(name, i)
    return names


def _treatments(located: Located, key: str) -> Iterator[tuple[str, str]]:
    found = located.value(key)
    for name in found if isinstance(found, dict) else ():
        if isinstance(name, str):
            yield key, name


def _twice(located: Located) -> Iterator[Problem]:
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
            yield located.problem(path, f"there is no pool {pool!r}", meant(pool, pools))
        elif isinstance(lora, str) and lora not in loras.get(pool, ()):
            hint = meant(lora, loras.get(pool, ()), "write it under loras of that pool")
            yield located.problem((*at, "lora"), f"the pool {pool!r} has no adapter {lora!r}", hint)
        elif pool in seen:
            yield located.problem(path, f"{pool!r} is listed twice", "keep one, with the weight of both")
        seen.add(pool)


def _aliases(located: Located, names: Mapping[str, int]) -> Iterator[Problem]:
    """Aliases of nothing, and those that lead back to themselves; a circle is told of once, where it is written first."""
    ends: set[str] = set()
    for name, i in names.items():
        at = ("models", i, "alias_of")
        to = located.value(*at)
        if isinstance(to, str) and to not in names:
            yield located.problem(at, f"this policy has no model {to!r}", meant(to, [one for one in names if one != name]))
        walked = [name]
        while isinstance(to, str) and to in names and to not in walked and to not in ends:
            walked.append(to)
            to = located.value("models", names[to], "alias_of")
        if isinstance(to, str) and to in walked:
            circle = " -> ".join((*walked[walked.index(to) :], to))
            yield located.problem(at, f"leads back to itself: {circle}", "let one of them name a pool")
        ends.update(walked)
