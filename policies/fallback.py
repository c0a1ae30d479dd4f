"""`fallback` of a model in a policy file: the models that answer instead of it, in order, and the conditions for each. Pure.

A fallback chain is flat: only the list of the requested model is followed, never the lists of the models in it. So a chain is exactly as
long as it is written.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import Field, StringConstraints, model_validator

from domain.faults import SOURCE, Kind, Source
from domain.strict import Strict
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem

MAX_FALLBACKS: Final = 4
"""Fallbacks of one model. A request that five models could not serve is better refused than kept waiting."""

_Name = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]


On = Literal["no_capacity", "context_too_long", "content_filter", "error"]
NO_CAPACITY: Final[On] = "no_capacity"
"""No backend can serve the request, or it would wait in the queue for too long."""
CONTEXT_TOO_LONG: Final[On] = "context_too_long"
CONTENT_FILTER: Final[On] = "content_filter"
"""The engine, a filter in front of it, or a guard rule of the model refused the content of the request."""
ERROR: Final[On] = "error"
"""The engine failed or timed out before the answer began, and so did the retry on another engine, if there was one."""
CONDITIONS: Final[tuple[On, ...]] = (NO_CAPACITY, CONTEXT_TOO_LONG, CONTENT_FILTER, ERROR)
OTHERWISE: Final[tuple[On, ...]] = (NO_CAPACITY, ERROR)
"""The conditions of an entry without `on`."""

_UNAVAILABLE: Final = (Kind.NO_BACKEND, Kind.OVERLOADED, Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE, Kind.BACKEND_DRAINED)
CONDITION_OF: Final[Mapping[Kind, On]] = {
    **{kind: ERROR for kind, source in SOURCE.items() if source is Source.ENGINE},
    **dict.fromkeys(_UNAVAILABLE, NO_CAPACITY),
    Kind.CONTEXT_TOO_LONG: CONTEXT_TOO_LONG,
    Kind.CONTENT_FILTERED: CONTENT_FILTER,
    Kind.GUARD_BLOCKED: CONTENT_FILTER,
}
"""The condition that each kind of failed attempt meets. A kind that is missing, such as an exceeded limit or an invalid request, takes
no fallback: another model must not or cannot mend it."""


class FallbackEntry(Strict):
    """One model that answers instead."""

    to: _Name = Field(description="Another model of this policy; that model's price, limits and rights apply to its answer.")
    on: list[On] = Field(
        default=list(OTHERWISE),
        min_length=1,
        max_length=len(CONDITIONS),
        description="Conditions of the fallback: `no_capacity` (no backend is up, or the queue wait would be too long), "
        "`context_too_long`, `content_filter`, `error` (the engine failed or timed out before the answer began, retries "
        "included).",
    )

    @model_validator(mode="after")
    def _conditions_are_unique(self) -> Self:
        if len(set(self.on)) < len(self.on):
            raise ValueError("has a condition twice in `on`; write each once")
        return self


class Fallback(msgspec.Struct, frozen=True):
    """One `FallbackEntry`, compiled."""

    model: str
    """The model that answers instead; never an alias."""
    on: frozenset[str]


def in_words(chain: tuple[Fallback, ...]) -> str:
    """A fallback chain as text for people; empty for an empty chain."""
    return ", then ".join(f"{fallback.model} on {', '.join(on for on in CONDITIONS if on in fallback.on)}" for fallback in chain)


def fallback_problems(located: Located, names: Mapping[str, int], suggestion: Any) -> Iterator[Problem]:
    """Fallbacks that name an unknown model, lead back, form a circle or are never reached. Reads the data as written, so that other
    mistakes in the file hide none of these.

    Args:
        names: index in `models` of the first entry of each model name.
        suggestion: makes a hint from an unknown name and the known names.
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
                yield located.problem(
                    place, f"this policy has no model {to!r}", suggestion(to, [model for model in names if model != name])
                )
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
                for condition in on:
                    edges.setdefault((name, condition), {})[end] = place
            seen.add(end)
    yield from _circles(located, edges)


def _circles(located: Located, edges: Mapping[tuple[str, str], Mapping[str, Path_]]) -> Iterator[Problem]:
    """Circles of models that answer for each other on the same condition: the failure of one becomes the overload of the other. Each circle
    is reported once, where it is written first."""
    reported: set[frozenset[str]] = set()
    for (name, on), targets in edges.items():
        for to, place in targets.items():
            back = _path(to, name, on, edges)
            if back and frozenset(back) not in reported:
                reported.add(frozenset(back))
                circle = " -> ".join((name, *back))
                yield located.problem(place, f"is a circle on {on}: {circle}", "remove one of them, or this condition from one")


def _path(begin: str, goal: str, on: str, edges: Mapping[tuple[str, str], Mapping[str, Path_]]) -> list[str]:
    """The shortest path between two models along fallbacks on one condition, both ends included; empty when there is none."""
    previous: dict[str, str] = {begin: ""}
    queue = [begin]
    for name in queue:
        for to in edges.get((name, on), ()):
            if to == goal:
                path = [goal, name]
                while previous[path[-1]]:
                    path.append(previous[path[-1]])
                return path[::-1]
            if to not in previous:
                previous[to] = name
                queue.append(to)
    return []


def _conditions(located: Located, at: Path_) -> list[str]:
    written = located.value(*at, "on")
    if written is None:
        return list(OTHERWISE)
    return [condition for condition in written if isinstance(condition, str)] if isinstance(written, list) else []


def _end(located: Located, name: str, names: Mapping[str, int]) -> str:
    """The model that an alias stands for; one of the aliases when they form a circle, which `dangling` reports."""
    for _ in names:
        to = located.value("models", names[name], "alias_of")
        if not isinstance(to, str) or to not in names:
            return name
        name = to
    return name


def _pool(located: Located, i: int) -> str | None:
    pool = located.value("models", i, "pool")
    return pool if isinstance(pool, str) else None
