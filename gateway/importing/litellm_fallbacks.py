"""LiteLLM's fallbacks as `fallback` lists of a policy: three settings by condition, and defaults for models without a list of their own.

LiteLLM follows the fallbacks of a fallback, and Tidegate the list of the requested model alone, which therefore refuses a circle; an entry
that would close one is left, with its reason.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from gateway.importing.plan import ImportPlan
from policies.fallback import CONDITIONS, CONTENT_FILTER, CONTEXT_TOO_LONG, MAX_FALLBACKS, OTHERWISE
from policies.yaml.located import Located
from policies.yaml.problems import Path_

BY_CONDITION: Final[dict[str, tuple[str, ...]]] = {
    "fallbacks": OTHERWISE,
    "context_window_fallbacks": (CONTEXT_TOO_LONG,),
    "content_policy_fallbacks": (CONTENT_FILTER,),
}
"""The conditions of each setting that lists fallbacks by model."""
DEFAULTS: Final = "default_fallbacks"
SETTINGS: Final = (*BY_CONDITION, DEFAULTS)
SECTIONS: Final = ("router_settings", "litellm_settings")

Wanted = tuple[str, Path_, str]
"""A model, the place of an entry, and the model that is to answer instead."""


def carry_fallbacks(source: Located, plan: ImportPlan) -> None:
    """Fill the fallbacks of carried models, from both sections that may have them."""
    conditions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for section in SECTIONS:
        for key, on in BY_CONDITION.items():
            for model, path, target in _listed(source, plan, (section, key)):
                _add(source, plan, conditions, (model, path, target), on)
    for section in SECTIONS:
        without = [model for model in plan.models if model not in plan.aliases and model not in plan.fallbacks]
        for at, target in _names(source, plan, (section, DEFAULTS), source.value(section, DEFAULTS)):
            for model in without:
                if model != target:
                    _add(source, plan, conditions, (model, at, target), OTHERWISE)


def _listed(source: Located, plan: ImportPlan, path: Path_) -> Iterator[Wanted]:
    entries = source.value(*path)
    if entries is None:
        return
    if not isinstance(entries, list):
        plan.leave(source, path, "is no list of {model: [fallbacks]}")
        return
    for at, entry in enumerate(entries):
        for model, targets in entry.items() if isinstance(entry, dict) else ():
            place = (*path, at, model)
            if model == "*":
                plan.leave(source, place, f"is for every model; write it as {DEFAULTS}")
            elif model not in plan.models:
                plan.leave(source, place, "is no model that was carried")
            else:
                for inner, target in _names(source, plan, place, targets):
                    yield str(plan.aliases.get(model, model)), inner, target


def _names(source: Located, plan: ImportPlan, path: Path_, targets: Any) -> Iterator[tuple[Path_, str]]:
    """The models of a list that can answer instead of another one, with their places."""
    if targets is None:
        return
    if not isinstance(targets, list):
        plan.leave(source, path, "is no list of models")
        return
    for at, target in enumerate(targets):
        if isinstance(target, str) and target in plan.models:
            yield (*path, at), plan.aliases.get(target, target)
        else:
            plan.leave(source, (*path, at), "is no model that was carried")


def _add(source: Located, plan: ImportPlan, conditions: dict[tuple[str, str], list[str]], wanted: Wanted, on: tuple[str, ...]) -> None:
    model, path, target = wanted
    entries = plan.fallbacks.get(model, [])
    fit = [condition for condition in on if condition not in conditions[model, target]]
    free = [condition for condition in fit if not _leads_back(plan, model, target, condition)]
    if not fit:
        return
    if not free:
        plan.leave(source, path, f"would lead back to {model!r}, and a fallback is no circle")
        return
    entry = next((entry for entry in entries if entry["to"] == target), None)
    if entry is None:
        if len(entries) >= MAX_FALLBACKS:
            plan.leave(source, path, f"is more than the {MAX_FALLBACKS} fallbacks that a model may have")
            return
        entry = {"to": target, "on": []}
        plan.fallbacks[model] = [*entries, entry]
    conditions[model, target] += free
    entry["on"] = [condition for condition in CONDITIONS if condition in conditions[model, target]]


def _leads_back(plan: ImportPlan, model: str, target: str, condition: str) -> bool:
    """Whether `model` can be reached from `target` by fallbacks on the condition."""
    seen: set[str] = set()
    waiting = [target]
    while waiting:
        at = waiting.pop()
        if at == model:
            return True
        if at not in seen:
            seen.add(at)
            waiting += [entry["to"] for entry in plan.fallbacks.get(at, []) if condition in entry["on"]]
    return False
