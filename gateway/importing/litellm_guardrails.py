"""Carries `guardrails` of a LiteLLM proxy's configuration over: into guard rules of the policy for everyone, and detectors of the settings.

Carried is what has the same effect here: Presidio's entities, secrets, OpenAI's moderations, words and patterns. A service with a protocol
of its own is left with its reason. Formats: docs.litellm.ai/docs/proxy/guardrails.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter, ValidationError

from domain.mistakes import words
from gateway.config.addresses import checked_hook_url
from gateway.importing.plan import ImportPlan, environment_name, slug
from guardrails.build import RuleUnusable
from guardrails.guard_set import GuardSet
from guardrails.policy import HELD_BYTES, MAX_RULES, GuardRule
from policies.yaml.located import Located
from policies.yaml.problems import Path_

_SENT: Final = ("input", "tool_results", "documents")
HOOKS: Final = {"pre_call": _SENT, "during_call": _SENT, "post_call": ("output",)}
"""The texts that a guardrail of each mode looks at."""
LOGGING: Final = "logging_only"

ENTITIES: Final = {"CREDIT_CARD": "card", "EMAIL_ADDRESS": "email", "IBAN_CODE": "iban", "PHONE_NUMBER": "phone", "IP_ADDRESS": "ip"}
"""The types of `pii` rules by Presidio's entities."""
IDS: Final = {
    **dict.fromkeys(("US_SSN", "US_ITIN"), "US"),
    **dict.fromkeys(("UK_NHS", "UK_NINO"), "GB"),
    **dict.fromkeys(("ES_NIF", "ES_NIE"), "ES"),
    "IT_FISCAL_CODE": "IT",
    "PL_PESEL": "PL",
    "AU_TFN": "AU",
    **dict.fromkeys(("IN_PAN", "IN_AADHAAR"), "IN"),
    "FI_PERSONAL_IDENTITY_CODE": "FI",
}
"""The region of a `national_id`, by Presidio's entities."""
PREBUILT: Final = {
    **dict.fromkeys(("visa", "mastercard", "amex", "discover", "credit_card"), ("pii", "card")),
    "email": ("pii", "email"),
    "us_phone": ("pii", "phone"),
    **dict.fromkeys(("ipv4", "ipv6"), ("pii", "ip")),
    **dict.fromkeys(("us_ssn", "us_ssn_no_dash"), ("pii", "national_id")),
    "aws_access_key": ("secrets", "aws_key"),
    "aws_secret_key": ("secrets", "aws_secret"),
    "github_token": ("secrets", "github_token"),
    "slack_token": ("secrets", "slack_token"),
    "generic_api_key": ("secrets", "assigned_secret"),
}
"""Kind of rule and type by the names of prebuilt patterns of LiteLLM's content filter."""
ACTIONS: Final = {"MASK": "redact", "BLOCK": "block"}

OPENAI: Final = "https://api.openai.com/v1"
OWN_CODE: Final = "no code is run from configuration; put it behind a URL and write a detector of the kind webhook"
PROTOCOL: Final = (
    "speaks LiteLLM's own messages, which no detector sends; let it answer those of docs/reference/guards.md and write a detector of the "
    "kind webhook"
)
SERVICE: Final = "is a service with a protocol of its own; put an adapter in front of it and write a detector of the kind webhook"
OLDER: Final = "is the older form; write the same as guardrails: [{guardrail_name, litellm_params}] and import again"

_RULE: Final[TypeAdapter[GuardRule]] = TypeAdapter(GuardRule)
_ID: Final = re.compile(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?")
_COMMON: Final = frozenset({"guardrail", "mode", "default_on"})

Rule = dict[str, Any]


class _Guard(msgspec.Struct, frozen=True):
    """One entry of `guardrails`."""

    name: str
    at: Path_
    """The path of `litellm_params`."""
    params: Mapping[str, Any]
    on: tuple[str, ...]
    logged: bool
    """Whether it only logs."""

    def rule(self, kind: str, mode: str, **more: Any) -> Rule:
        """A rule of the guardrail, without its id."""
        return {"kind": kind, "mode": "flag" if self.logged else mode, "on": list(self.on), **more}


def carry_guardrails(source: Located, plan: ImportPlan) -> None:
    """Fill guard rules and detectors from `guardrails`, and say of every other setting there why it is left."""
    entries = source.value("guardrails")
    if entries is None:
        return
    if not isinstance(entries, list):
        plan.leave(source, ("guardrails",), "is no list of guardrails")
        return
    taken: set[str] = set()
    for at, entry in enumerate(entries):
        path: Path_ = ("guardrails", at)
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        name = entry.get("guardrail_name") if isinstance(entry, dict) else None
        if not isinstance(params, dict) or not isinstance(name, str) or not isinstance(params.get("guardrail"), str):
            plan.leave(source, path, "is no guardrail: it needs a guardrail_name, and litellm_params with guardrail and mode")
            continue
        for key in entry:
            if key == "guardrail_info":
                plan.note(source, (*path, key), "describes the guardrail, and needs no setting")
            elif key not in ("guardrail_name", "litellm_params"):
                plan.leave(source, (*path, key), "has no counterpart")
        _carry(source, plan, name, (*path, "litellm_params"), params, taken)


def _carry(source: Located, plan: ImportPlan, name: str, at: Path_, params: dict[str, Any], taken: set[str]) -> None:
    kind = params["guardrail"].lower().replace("_", "-")
    handler = _HANDLERS.get(kind)
    if handler is None:
        plan.leave(source, (*at, "guardrail"), OWN_CODE if "." in kind or kind == "custom-code" else _LEFT.get(kind, SERVICE))
        return
    on, logged = _hooks(source, plan, (*at, "mode"), params.get("mode"))
    if not on:
        return
    make, read = handler
    for key, value in params.items():
        if key not in _COMMON and key not in read and value is not None:
            plan.leave(source, (*at, key), "has no counterpart")
    standing = params.get("default_on") is True
    made = []
    for rule in make(source, plan, _Guard(name, at, params, on, logged)):
        rule_id = _id_of(name, taken)
        whole = {"id": rule_id, **rule} | ({} if standing else {"default_on": False})
        why = _why_unusable(whole) if len(plan.guards) < MAX_RULES else f"a policy has at most {MAX_RULES} guard rules"
        if why:
            plan.leave(source, at, f"the rule {rule_id!r} cannot be used here: {why}")
        else:
            plan.guards.append(whole)
            made.append(rule_id)
    plan.guard_names[name] = [] if standing else made
    if made and made != [name]:
        asked = "" if standing else "; requests ask for it by these names"
        plan.note(source, at, f"the guardrail {name!r} is {', '.join(made)} in guards of the policy for everyone{asked}")


def _id_of(name: str, taken: set[str]) -> str:
    if _ID.fullmatch(name) and name not in taken:
        taken.add(name)
        return name
    return slug(name, taken)


def _why_unusable(rule: Rule) -> str:
    try:
        GuardSet([_RULE.validate_python(rule)], HELD_BYTES)
    except ValidationError as error:
        return words(error.errors()[0])
    except RuleUnusable as error:
        return str(error)
    return ""


def _hooks(source: Located, plan: ImportPlan, path: Path_, mode: Any) -> tuple[tuple[str, ...], bool]:
    """The texts that a guardrail looks at, none where it has no mode that is carried; and whether it only logs."""
    if isinstance(mode, dict):
        plan.leave(
            source, (*path, "tags"), "a mode by tags of requests has no counterpart; write the rules in the policy's rules (if, then)"
        )
        mode = mode.get("default")
    modes = [one.lower() for one in (mode if isinstance(mode, list) else [mode]) if isinstance(one, str)]
    for one in modes:
        if one not in HOOKS and one != LOGGING:
            plan.leave(source, path, f"{one} has no counterpart; tools' results and arguments are texts that rules look at (on)")
    on = tuple(dict.fromkeys(text for one in modes for text in HOOKS.get(one, ())))
    if on or LOGGING not in modes:
        if not on and not any(one not in HOOKS for one in modes):
            plan.leave(source, path, "names no mode")
        return on, False
    plan.note(source, path, "notes findings in the log and in counters (mode: flag); no log has the texts themselves")
    return ("input", "output"), True


# --- kinds of guardrails ----------------------------------------------------------------------------------------------


def _secrets(source: Located, plan: ImportPlan, guard: _Guard) -> Iterator[Rule]:
    plan.note(source, guard.at, "secrets are found by their published formats here, not by detect-secrets")
    if guard.params.get("detect_secrets_config") is not None:
        plan.leave(source, (*guard.at, "detect_secrets_config"), "has no counterpart; name the types of the rule instead")
    yield guard.rule("secrets", "redact")


def _presidio(source: Located, plan: ImportPlan, guard: _Guard) -> Iterator[Rule]:
    params = guard.params
    scope = params.get("presidio_filter_scope") or params.get("presidio_run_on") or "both"
    on = tuple(text for text in guard.on if scope == "both" or (text == "output") is (scope == "output"))
    if not on:
        plan.leave(source, (*guard.at, "mode"), f"and {scope!r}, to which its checks are bounded, have no text in common")
        return
    guard = msgspec.structs.replace(guard, on=on)
    restore = {"restore": True} if params.get("output_parse_pii") is True and not guard.logged and "input" in on else {}
    entities = params.get("pii_entities_config")
    if not isinstance(entities, dict) or not entities:
        plan.note(source, guard.at, "masks what pii rules find, for all types; national ids need regions")
        yield guard.rule("pii", "redact", **restore)
        yield from _by_presidio(source, plan, guard, {"": "MASK"}, restore)
        return
    denied = {str(name) for name in params.get("presidio_entities_deny_list") or ()}
    wanted: dict[str, str] = {}
    for name, action in entities.items():
        if str(action).upper() not in ACTIONS:
            plan.leave(source, (*guard.at, "pii_entities_config", name), "is neither MASK nor BLOCK")
        elif name not in denied:
            wanted[str(name)] = str(action).upper()
    local = [name for name in wanted if name in ENTITIES or name in IDS]
    if local:
        plan.note(source, (*guard.at, "pii_entities_config"), f"{', '.join(local)}: found by form and checksum here, without Presidio")
    for action, mode in ACTIONS.items():
        names = [name for name in local if wanted[name] == action]
        types = list(dict.fromkeys(ENTITIES.get(name, "national_id") for name in names))
        regions = list(dict.fromkeys(IDS[name] for name in names if name in IDS))
        if types:
            yield guard.rule("pii", mode, types=types, **({"regions": regions} if regions else {}), **(restore if mode == "redact" else {}))
    others = {name: action for name, action in wanted.items() if name not in local}
    if others:
        yield from _by_presidio(source, plan, guard, others, restore)


def _by_presidio(source: Located, plan: ImportPlan, guard: _Guard, entities: Mapping[str, str], restore: Rule) -> Iterator[Rule]:
    """Rules that ask Presidio, one for each action and threshold. An empty name stands for all entities."""
    named = [name for name in entities if name]
    url = _url(source, plan, guard, "presidio_analyzer_api_base", "", "/analyze")
    if url is None:
        which = ", ".join(named) or "names, places and other entities without a checksum"
        why = f"{which} would need Presidio's analyzer, and presidio_analyzer_api_base is not written"
        plan.leave(source, guard.at, f"{why}; write a detector of the kind presidio")
        return
    detector = _detector(plan, guard.name, {"kind": "presidio", **url})
    if named:
        detector["entities"] = named
    language = guard.params.get("presidio_language")
    if isinstance(language, str) and re.fullmatch(r"[a-z]{2}", language):
        detector["language"] = language
    thresholds = guard.params.get("presidio_score_thresholds")
    thresholds = thresholds if isinstance(thresholds, dict) else {}
    groups: dict[tuple[str, float | None], list[str]] = {}
    for name, action in entities.items():
        groups.setdefault((action, thresholds.get(name, thresholds.get("ALL"))), []).append(name)
    for (action, threshold), names in groups.items():
        more: Rule = {"detector": _name_of(plan, detector)}
        more |= {"categories": names} if names != [""] else {}
        more |= {} if threshold is None else {"threshold": float(threshold)}
        closed = action == "BLOCK" or guard.params.get("mask_pii_fail_closed") is True
        if not guard.logged:
            more["on_error"] = "closed" if closed else "open"
            if not closed:
                plan.note(source, guard.at, "text passes unmasked while Presidio is away, as in LiteLLM; on_error: closed refuses it")
        yield guard.rule("detector", ACTIONS[action], **more, **(restore if action == "MASK" else {}))


def _moderation(source: Located, plan: ImportPlan, guard: _Guard) -> Iterator[Rule]:
    url = _url(source, plan, guard, "api_base", OPENAI, "/moderations")
    if url is None:
        return
    written = guard.params.get("api_key")
    variable = environment_name(written) or ("OPENAI_API_KEY" if written is None else None)
    if variable is None:
        variable = re.sub(r"[^A-Z0-9]+", "_", f"GUARD_{guard.name}_KEY".upper()).strip("_")
        plan.note(source, (*guard.at, "api_key"), f"is a key written out, which is not copied; put it into the environment as {variable}")
    model = guard.params.get("model")
    settings = {"kind": "moderations", **url, "api_key": {"env": variable}} | ({"model": model} if isinstance(model, str) else {})
    detector = _detector(plan, guard.name, settings)
    yield guard.rule("detector", "block", detector=_name_of(plan, detector), **({} if guard.logged else {"on_error": "closed"}))


def _content_filter(source: Located, plan: ImportPlan, guard: _Guard) -> Iterator[Rule]:
    groups: dict[tuple[str, str], list[str]] = {}
    for at, entry in _entries(source, plan, guard, "blocked_words", "keyword"):
        groups.setdefault(("words", ACTIONS[entry["action"].upper()]), []).append(str(entry["keyword"]))
        if entry.get("description"):
            plan.note(source, (*at, "description"), "describes the word, and needs no setting")
    patterns = []
    for at, entry in _entries(source, plan, guard, "patterns", "pattern_type"):
        mode = ACTIONS[entry["action"].upper()]
        name, pattern = entry.get("pattern_name"), entry.get("pattern")
        if entry["pattern_type"] == "regex" and isinstance(pattern, str):
            patterns.append(guard.rule("pattern", mode, pattern=pattern))
        elif isinstance(name, str) and name in PREBUILT:
            kind, found = PREBUILT[name]
            groups.setdefault((kind, mode), []).append(found)
        else:
            plan.leave(source, at, "is a pattern that no rule has here; write it as a rule of the kind pattern")
    for (kind, mode), listed in groups.items():
        values = list(dict.fromkeys(listed))
        regions = {"regions": ["US"]} if kind == "pii" and {"phone", "national_id"} & set(values) else {}
        yield guard.rule(kind, mode, **{"words" if kind == "words" else "types": values}, **regions)
    yield from patterns
    for key in ("blocked_words_file", "categories"):
        if guard.params.get(key):
            plan.leave(source, (*guard.at, key), "has no counterpart; write the words as a rule of the kind words")


def _entries(source: Located, plan: ImportPlan, guard: _Guard, field: str, key: str) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """The entries of a list that have `key` and an action."""
    entries = guard.params.get(field)
    for at, entry in enumerate(entries if isinstance(entries, list) else ()):
        path = (*guard.at, field, at)
        if isinstance(entry, dict) and entry.get(key) is not None and str(entry.get("action")).upper() in ACTIONS:
            yield path, {**entry, "action": str(entry["action"])}
        else:
            plan.leave(source, path, f"has no {key}, or an action that is neither MASK nor BLOCK")


def _url(source: Located, plan: ImportPlan, guard: _Guard, key: str, default: str, ending: str) -> Rule | None:
    """The address of a service as fields of its detector; None, and told, where there is none."""
    written = guard.params.get(key) or default
    variable = environment_name(written)
    if variable is not None:
        plan.note(source, (*guard.at, key), f"is read from {variable}, whose value must not end in / here")
        return {"url": f"${{{variable}}}{ending}", "private": True}
    if not isinstance(written, str) or not written:
        return None
    url = written.rstrip("/")
    url = url if url.endswith(ending) else url + ending
    try:
        checked_hook_url(url)
    except ValueError as error:
        plan.leave(source, (*guard.at, key), str(error))
        return None
    return {"url": url} | ({"private": True} if url.startswith("http:") else {})


def _detector(plan: ImportPlan, name: str, settings: Rule) -> Rule:
    """A detector of the settings, under a name of its own."""
    taken = set(plan.detectors)
    plan.detectors[_id_of(name, taken)] = settings
    return settings


def _name_of(plan: ImportPlan, detector: Rule) -> str:
    return next(name for name, settings in plan.detectors.items() if settings is detector)


_Make = Callable[[Located, ImportPlan, _Guard], Iterator[Rule]]
_PRESIDIO: Final = frozenset(
    {"presidio_analyzer_api_base", "presidio_filter_scope", "presidio_run_on", "presidio_language", "presidio_score_thresholds"}
    | {"presidio_entities_deny_list", "pii_entities_config", "output_parse_pii", "mask_pii_fail_closed", "presidio_anonymizer_api_base"}
)
_HANDLERS: Final[Mapping[str, tuple[_Make, frozenset[str]]]] = {
    "hide-secrets": (_secrets, frozenset({"detect_secrets_config"})),
    "presidio": (_presidio, _PRESIDIO),
    "openai-moderation": (_moderation, frozenset({"api_base", "api_key", "model"})),
    "litellm-content-filter": (_content_filter, frozenset({"patterns", "blocked_words", "blocked_words_file", "categories"})),
}
"""The function that makes the rules of a kind of guardrail, and the parameters that it reads."""

_LEFT: Final = {
    "generic-guardrail-api": PROTOCOL,
    "tool-permission": "has no counterpart; a rule of the policy can tell requests with tools",
}
