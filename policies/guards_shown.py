"""Guard rules of policies as text for people: what a rule does, which apply to a request, and what changes. Nothing parses the text."""

import hashlib
import json
from collections.abc import Iterator
from typing import Final

from guardrails.policy import GuardPolicy, GuardRule
from policies.compile import PolicySet
from policies.guards import GuardLevels
from tenancy.keys import TAG_NAME

GUARD_TAG: Final = "guard."
"""How the names of key tags begin that ask for a guard rule. Only owners and admins set them: they do not begin with `own.`."""

MAX_SHOWN_CHARS: Final = 80
"""A longer value, such as a list of words, is shown as its size and a digest."""

_SAID: Final = frozenset({"id", "kind", "mode", "on", "default_on"})


def guard_in_words(rule: GuardRule) -> str:
    """A guard rule as text, without its id. Two rules that differ have different texts, up to a collision of a digest."""
    written = rule.model_dump(mode="json")
    fields = type(rule).model_fields
    others = [name for name in written if name not in _SAID and written[name] != fields[name].get_default(call_default_factory=True)]
    parts = [f"{rule.mode} {rule.kind} on {', '.join(rule.on)}", *(f"{name} {_value(written[name])}" for name in others)]
    return "; ".join([*parts, *([] if rule.default_on else ["where a key or a request asks for it"])])


def _value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    size = f"{len(value)} entries" if isinstance(value, list) else f"{len(text)} characters"
    return f"of {size} ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def guards_in_words(levels: GuardLevels | None, project: str, model: str, rule: str) -> Iterator[str]:
    """A line for each guard rule of a request, outer levels first, with the level that it comes from."""
    for words, guards in levels.applying(project, model, rule) if levels is not None else ():
        for one in guards.rules:
            yield f"guard rule {one.id} of {words}: {guard_in_words(one)}"


def guard_tags(policies: PolicySet) -> set[str]:
    """The key tags that ask for a guard rule of the policies; a rule whose id is too long for a tag has none."""
    rules = [
        rule
        for policy in policies.policies()
        if policy.guards is not None
        for guards in policy.guards.places().values()
        for rule in guards.rules
    ]
    tags = {f"{GUARD_TAG}{rule.id}" for rule in rules if not rule.default_on}
    return {tag for tag in tags if TAG_NAME.fullmatch(tag)}


def guard_differences(subject: str, old: GuardLevels | None, new: GuardLevels | None) -> Iterator[str]:
    """One line for each change of a tenant's guard rules, at the level where it is written."""
    was, now = ({} if levels is None else levels.places() for levels in (old, new))
    for place in [*was, *(place for place in now if place not in was)]:
        yield from _of_level(f"{subject}, guards of {place}", was.get(place), now.get(place))


def _of_level(where: str, old: GuardPolicy | None, new: GuardPolicy | None) -> Iterator[str]:
    was, now = ({rule.id: guard_in_words(rule) for rule in guards.rules} if guards is not None else {} for guards in (old, new))
    for name in [*was, *(name for name in now if name not in was)]:
        if name not in now:
            yield f"{where}: {name} removed (was {was[name]})"
        elif name not in was:
            yield f"{where}: {name} added, {now[name]}"
        elif was[name] != now[name]:
            yield f"{where}: {name} becomes {now[name]} (was {was[name]})"
    if [name for name in was if name in now] != [name for name in now if name in was]:
        yield f"{where}: the order becomes {', '.join(now)}"
    before, after = (_bound(guards) for guards in (old, new))
    if before != after:
        yield f"{where}: held_bytes {before} -> {after}"


def _bound(guards: GuardPolicy | None) -> str:
    return "none of its own" if guards is None or "held_bytes" not in guards.model_fields_set else str(guards.held_bytes)
