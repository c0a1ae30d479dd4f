"""`fallback` of a model in a policy file: the models that answer instead where it cannot, and when. Pure.

A chain is flat: what is tried after a model is what its own list says, in that order, and the lists of the models in it are of no account.
So a chain is as long as it is written, and whoever reads it knows all of it.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import Field, StringConstraints, model_validator

from domain.faults import SOURCE, Kind, Source
from domain.strict import Strict
from policies.located_yaml import Located
from policies.problems import Path_, Problem

MAX_FALLBACKS: Final = 4
"""Of one model. A request that five models have failed is better told so than kept waiting."""

_Name = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]


On = Literal["no_capacity", "context_too_long", "content_filter", "error"]
NO_CAPACITY: Final[On] = "no_capacity"
"""Nobody can serve it, or its turn would come too late."""
CONTEXT_TOO_LONG: Final[On] = "context_too_long"
CONTENT_FILTER: Final[On] = "content_filter"
"""The engine, or a filter in front of it, refused what the request says."""
ERROR: Final[On] = "error"
"""Its engine failed or timed out before the answer began, and so did the retry on another one where there was one."""
CONDITIONS: Final[tuple[On, ...]] = (NO_CAPACITY, CONTEXT_TOO_LONG, CONTENT_FILTER, ERROR)
OTHERWISE: Final[tuple[On, ...]] = (NO_CAPACITY, ERROR)
"""Where a chain does not say when."""

_AWAY: Final = (Kind.NO_BACKEND, Kind.OVERLOADED, Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE, Kind.BACKEND_DRAINED)
CONDITION_OF: Final[Mapping[Kind, On]] = {
    **{kind: ERROR for kind, source in SOURCE.items() if source is Source.ENGINE},
    **dict.fromkeys(_AWAY, NO_CAPACITY),
    Kind.CONTEXT_TOO_LONG: CONTEXT_TOO_LONG,
    Kind.CONTENT_FILTERED: CONTENT_FILTER,
}
"""The ends of an attempt that a chain can be for. What is not here, such as a limit of the caller's or a request that is wrong, another
model must not or cannot mend."""


class FallbackEntry(Strict):
    """One model that answers instead."""

    to: _Name = Field(description="Another model of this policy; its price, limits and rights hold for what it answers.")
    on: list[On] = Field(
        default=list(OTHERWISE),
        min_length=1,
        max_length=len(CONDITIONS),
        description="When: `no_capacity` (nobody is up, or its turn would come too late), `context_too_long`, `content_filter`, `error` "
        "(its engine failed or timed out before the answer began, retries included).",
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.on)) < len(self.on):
            raise ValueError("has a condition twice in `on`; write each once")
        return self


class Fallback(msgspec.Struct, frozen=True):
    """The same, compiled."""

    model: str
    """The model itself, never an alias."""
    on: frozenset[str]


def in_words(chain: tuple[Fallback, ...]) -> str:
    """A chain for people; empty for none."""
    return ", then ".join(f"{one.model} on {', '.join(on for on in CONDITIONS if on in one.on)}" for one in chain)


def fallback_problems(located: Located, names: Mapping[str, int], meant: Any) -> Iterator[Problem]:
    """Chains that lead nowhere, back or in a circle, and those that nobody reaches; looks at what was written, so that other mistakes
    hide none of these.

    Args:
        names: where in `models` each model stands first.
        meant: makes a hint of a name and those there are.
    """
    edges: dict[tuple[str, str], dict[str, Path_]] = {}
    for name, i in names.items():
        at: Path_ = ("models", i, "fallback")
        entries = located.value(*at)
        if not isinstance(entries, list) or not entries:
            continue
        if isinstance(located.value("models", i, "alias_of"), str):
            stands_for = _end(located, name, names)
            yield located.problem(at, f"is never looked at: {name!r} stands for {stands_for!r}", "write it at that model")
            continue
        seen: set[str] = set()
        for j in range(len(entries)):
            to = located.value(*at, j, "to")
            if not isinstance(to, str):
                continue
            place = (*at, j, "to")
            if to not in names:
                yield located.problem(place, f"this policy has no model {to!r}", meant(to, [one for one in names if one != name]))
                continue
            end = _end(located, to, names)
            on = _conditions(located, (*at, j))
            alias = f", for which {to!r} stands" if end != to else ""
            if end == name:
                yield located.problem(place, f"leads back to {name!r} itself{alias}", "name another model")
            elif end in seen:
                yield located.problem(place, f"{end!r} is in this chain already{alias}", "keep one, with the conditions of both")
            elif on == [CONTEXT_TOO_LONG] and _pool(located, i) is not None and _pool(located, i) == _pool(located, names[end]):
                yield located.problem(
                    place, f"is never of use: {end!r} has the same pool, so the same context", "name a model of a pool with a longer one"
                )
            else:
                for one in on:
                    edges.setdefault((name, one), {})[end] = place
            seen.add(end)
    yield from _circles(located, edges)


def _circles(located: Located, edges: Mapping[tuple[str, str], Mapping[str, Path_]]) -> Iterator[Problem]:
    """Models that stand in for each other in the same case: the failure of one is the overload of the other. Each circle once, where it
    is written first."""
    told: set[frozenset[str]] = set()
    for (name, on), ways in edges.items():
        for to, place in ways.items():
            back = _way(to, name, on, edges)
            if back and frozenset(back) not in told:
                told.add(frozenset(back))
                circle = " -> ".join((name, *back))
                yield located.problem(place, f"is a circle on {on}: {circle}", "remove one of them, or this condition from one")


def _way(begin: str, goal: str, on: str, edges: Mapping[tuple[str, str], Mapping[str, Path_]]) -> list[str]:
    """A way between two models along chains for one condition, both ends included; empty where there is none."""
    came: dict[str, str] = {begin: ""}
    open_ = [begin]
    for name in open_:
        for to in edges.get((name, on), ()):
            if to == goal:
                way = [goal, name]
                while came[way[-1]]:
                    way.append(came[way[-1]])
                return way[::-1]
            if to not in came:
                came[to] = name
                open_.append(to)
    return []


def _conditions(located: Located, at: Path_) -> list[str]:
    written = located.value(*at, "on")
    if written is None:
        return list(OTHERWISE)
    return [one for one in written if isinstance(one, str)] if isinstance(written, list) else []


def _end(located: Located, name: str, names: Mapping[str, int]) -> str:
    """What an alias stands for; where aliases go in a circle, which is a mistake told of elsewhere, one of them."""
    for _ in names:
        to = located.value("models", names[name], "alias_of")
        if not isinstance(to, str) or to not in names:
            return name
        name = to
    return name


def _pool(located: Located, i: int) -> str | None:
    found = located.value("models", i, "pool")
    return found if isinstance(found, str) else None
