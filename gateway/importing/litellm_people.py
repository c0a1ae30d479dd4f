"""LiteLLM's teams and keys, as its API lists them: teams become tenants with limits and policies, keys are made anew.

LiteLLM stores hashes of keys, of another kind than Tidegate's: no key can be carried over, only its rights and limits.
"""

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

from gateway.importing.plan import NO_PERIOD, ImportPlan, limit_of, nanousd, period, period_in_words, slug, whole
from policies.guards_shown import GUARD_TAG
from policies.yaml.located import Located
from policies.yaml.problems import Path_
from tenancy.keys import MAX_TAGS, TAG_NAME
from tenancy.limits import Level, LimitWindow, Meter, Scope, Window

TEAMLESS: Final = "without-team"
"""The tenant of keys without a team."""
ALL_MODELS: Final = frozenset({"all-proxy-models", "all-team-models"})
RATES: Final = {
    "rpm_limit": (Meter.REQUESTS, Window.MINUTE),
    "tpm_limit": (Meter.TOKENS, Window.MINUTE),
    "max_parallel_requests": (Meter.CONCURRENT_REQUESTS, Window.NOW),
}
_READ: Final = {*RATES, "max_budget", "budget_duration", "models", "team_id", "team_alias", "key_alias", "expires", "blocked", "guardrails"}
BOOKS: Final = frozenset(
    {"spend", "created_at", "updated_at", "created_by", "updated_by", "budget_reset_at", "last_refreshed_at", "last_active", "key_name"}
    | {"token", "token_id", "soft_budget_cooldown", "model_spend", "rotation_count", "team_member_count", "keys_count"}
)
"""Fields of LiteLLM's own bookkeeping of a team or key, and the digest of the key itself."""


def carry_teams(source: Located, plan: ImportPlan) -> dict[str, str]:
    """Fill tenants, their policies and limits; returns the tenant of each team id."""
    tenants: dict[str, str] = {}
    taken = {tenant["name"] for tenant in plan.tenants}
    teams = _entries(source, plan, "teams")
    for path, team in teams:
        team_id = team.get("team_id")
        name = slug(str(team.get("team_alias") or team_id or "team"), taken)
        if isinstance(team_id, str):
            tenants[team_id] = name
        tenant = {"name": name, "label": str(team.get("team_alias") or "")[:200]}
        plan.tenants.append(tenant | ({"disabled": True} if team.get("blocked") is True else {}))
        models = _models(source, plan, path, team)
        if models is not None:
            plan.policies[name] = models
        plan.tenant_guards[name] = _guardrails(team)
        if tags := _tags(source, plan, path, plan.tenant_guards[name]):
            plan.note(source, path, f"keys of this team have the tags {_shown(tags)}; give them to later ones too")
        for limit in _limits(source, plan, path, team, Scope(Level.TENANT, name)):
            plan.limits.append(limit)
    _unread(source, plan, "teams", (team for _, team in teams))
    return tenants


def carry_keys(source: Located, plan: ImportPlan, tenants: dict[str, str]) -> None:
    """Fill the keys to make, each with its models and limits."""
    keys = _entries(source, plan, "keys")
    for path, key in keys:
        team = key.get("team_id")
        if team is not None and team not in tenants:
            plan.leave(source, (*path, "team_id"), "is no team of the list; without one, its key is not carried")
            continue
        tenant = tenants.get(team) if isinstance(team, str) else TEAMLESS
        if tenant == TEAMLESS and all(tenant_entry["name"] != TEAMLESS for tenant_entry in plan.tenants):
            plan.tenants.append({"name": TEAMLESS, "label": "keys that were no team's"})
        if key.get("blocked") is True:
            plan.note(source, (*path, "blocked"), "a blocked key is not made anew")
            continue
        label = str(key.get("key_alias") or "")
        entry: dict[str, Any] = {"tenant": tenant, "project": "default", "label": label[:200]}
        if isinstance(key.get("expires"), str):
            entry["expires_at"] = key["expires"]
        models = _models(source, plan, path, key)
        if models is not None:
            entry["models"] = models
        of_team = [name for name in plan.tenant_guards.get(entry["tenant"], ()) if name in plan.guard_names]
        tags = _tags(source, plan, path, [*of_team, *_guardrails(key)])
        if tags:
            entry["tags"] = tags
        # a key has no id before it is made, so its limits are kept beside it
        limits = [{n: v for n, v in limit.items() if n != "scope"} for limit in _limits(source, plan, path, key, Scope(Level.KEY, "new"))]
        plan.keys.append(entry | ({"limits": limits} if limits else {}))
    _unread(source, plan, "keys", (key for _, key in keys))


def _guardrails(entry: dict[str, Any]) -> list[str]:
    """The guardrails that a team or key asks for: its own list, or that in its metadata."""
    metadata = entry.get("metadata")
    lists = (entry.get("guardrails"), metadata.get("guardrails") if isinstance(metadata, dict) else None)
    return [name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)]


def _tags(source: Located, plan: ImportPlan, path: Path_, names: list[str]) -> dict[str, str]:
    """The tags of a key that ask for the rules of guardrails."""
    tags: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if name not in plan.guard_names:
            plan.leave(source, (*path, "guardrails"), f"{name!r} is no guardrail that was carried")
        for rule in plan.guard_names.get(name, ()):
            tag = f"{GUARD_TAG}{rule}"
            if not TAG_NAME.fullmatch(tag) or len(tags) >= MAX_TAGS:
                why = f"the tag {tag!r} is too long, or one of more than {MAX_TAGS}; give the rule a shorter id, and the key its tag"
                plan.leave(source, (*path, "guardrails"), why)
            else:
                tags[tag] = "on"
    return tags


def _shown(tags: dict[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in tags.items())


def _entries(source: Located, plan: ImportPlan, name: str) -> list[tuple[Path_, dict[str, Any]]]:
    entries = source.value(name)
    if not isinstance(entries, list):
        plan.leave(source, (name,), "is no list; give what the API lists")
        return []
    listed: list[tuple[Path_, dict[str, Any]]] = []
    for at, entry in enumerate(entries):
        if isinstance(entry, dict):
            listed.append(((name, at), entry))
        else:
            plan.leave(source, (name, at), "is no entry with its fields; list them in full (return_full_object=true)")
    return listed


def _models(source: Located, plan: ImportPlan, path: Path_, entry: dict[str, Any]) -> list[str] | None:
    """The models that a team or key may use; None for all models."""
    models = entry.get("models")
    if not isinstance(models, list) or not models or ALL_MODELS & {str(model) for model in models}:
        return None
    allowed: list[str] = []
    for at, model in enumerate(models):
        named = [name for name in plan.models if fnmatchcase(name, model)] if isinstance(model, str) and "*" in model else [model]
        if not named or (model not in plan.models and named == [model] and model != "no-default-models"):
            plan.leave(source, (*path, "models", at), "is no model that was carried")
        allowed += [name for name in named if isinstance(name, str) and name in plan.models and name not in allowed]
        if isinstance(model, str) and "*" in model and named:
            plan.note(source, (*path, "models", at), f"is a pattern, and stands for {', '.join(named)} here; later models need a change")
    for name in allowed:
        target = plan.aliases.get(name, name)
        if target not in allowed:
            why = f"stands for {target!r}, which is not listed; it is a model of its own here, without that model's price and limits"
            plan.leave(source, (*path, "models"), f"{name}: {why}")
    for name in allowed:
        for entry in plan.fallbacks.get(plan.aliases.get(name, name), []):
            to = entry["to"]
            if to not in allowed:
                why = f"because {to!r} is not listed; list it where it may answer in place of {name!r}"
                plan.leave(source, (*path, "models"), f"the fallback of {name!r} to {to!r}, {why}")
    return allowed


def _limits(source: Located, plan: ImportPlan, path: Path_, entry: dict[str, Any], scope: Scope) -> list[dict[str, Any]]:
    amounts: list[tuple[str, Meter, LimitWindow | None, int | None]] = [
        (field, meter, window, whole(entry[field])) for field, (meter, window) in RATES.items() if entry.get(field) is not None
    ]
    if entry.get("max_budget") is not None:
        amounts.append(("max_budget", Meter.COST_NANOUSD, period(entry.get("budget_duration")), nanousd(entry["max_budget"])))
    limits = []
    for field, meter, window, amount in amounts:
        if amount is None or window is None:
            plan.leave(source, (*path, field), "is no amount" if amount is None else NO_PERIOD)
            continue
        words = period_in_words(window) if field == "max_budget" else ""
        if words and all(remark.text != words for remark in plan.notes):  # once for all teams and keys of this duration
            plan.note(source, (*path, field), words)
        limit = limit_of(scope, meter, window, amount)
        if isinstance(limit, str):
            plan.leave(source, (*path, field), limit)
        else:
            limits.append(limit)
    return limits


def _only_guardrails(metadata: Any) -> bool:
    return isinstance(metadata, dict) and metadata.keys() == {"guardrails"}


def _unread(source: Located, plan: ImportPlan, name: str, entries: Iterable[dict[str, Any]]) -> None:
    """Record every unread field once, because all entries have the same fields."""
    counts = Counter(
        field
        for entry in entries
        for field, value in entry.items()
        if field not in _READ and value not in (None, "", [], {}, False, 0) and not (field == "metadata" and _only_guardrails(value))
    )
    for field, count in sorted(counts.items()):
        if field in BOOKS:
            plan.note(source, (name,), f"{field} ({count} entries) is LiteLLM's own record and stays there")
        else:
            plan.leave(source, (name,), f"{field} ({count} entries) has no counterpart")
