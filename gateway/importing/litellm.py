"""Carries the configuration of a LiteLLM proxy over into an `ImportPlan`, and gives a reason for each setting that is left.

`carry_models` reads `model_list`: deployments of self-hosted engines become backends of pools, their groups public model names.
`carry_sections` reads the other sections: aliases, timeouts and budgets are carried over, the rest is left. People and their keys are in
`gateway/importing/litellm_people.py`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from gateway.config.addresses import checked_engine_url
from gateway.importing.plan import ImportPlan, environment_name, model_scope, nanousd, period, slug, whole
from policies.yaml.located import Located
from policies.yaml.problems import Path_
from tenancy.limits import Level, Meter, Scope, Window
from tenancy.money import dollars_of

DIALECTS: Final = {
    "hosted_vllm": "vllm",
    "openai": "openai",
    "openai_like": "openai",
    "custom_openai": "openai",
    "text-completion-openai": "openai",
    "lm_studio": "openai",
    "llamafile": "openai",
    "xinference": "openai",
}
"""Dialects by LiteLLM's provider; all other providers are cloud services, or protocols that no supported engine speaks."""

NO_KEY: Final = frozenset(
    {"", "none", "null", "empty", "dummy", "fake", "fake-key", "no-key", "not-needed", "na", "n/a", "anything", "sk-no-key-required"}
)
"""Placeholders that people write where an engine asks for no key, in lower case."""

COSTS: Final = {
    "input_cost_per_token": ("uncached_input", "cached_input"),
    "output_cost_per_token": ("output", "reasoning"),
    "cache_read_input_token_cost": ("cached_input",),
    "output_cost_per_reasoning_token": ("reasoning",),
}
"""The rates that each of LiteLLM's prices sets; later prices are more exact and override earlier ones."""
RATES: Final = {
    "rpm": (Meter.REQUESTS, Window.MINUTE),
    "tpm": (Meter.TOKENS, Window.MINUTE),
    "max_parallel_requests": (Meter.CONCURRENT_REQUESTS, Window.NOW),
}
_READ: Final = {"model", "api_base", "base_url", "api_key", "custom_llm_provider", *COSTS, *RATES}
_DESCRIPTIVE: Final = re.compile(
    r"id|mode|base_model|max_(input_|output_)?tokens|description|version|metadata|db_model|litellm_provider|supports_\w+"
)
"""Keys of `model_info` that only describe the model; engines report these facts themselves."""
_SERVED_MODES: Final = (None, "chat", "completion", "embedding")
_PARAMETER: Final = "requests go on as callers send them; give the engine its own defaults"
_WHY: Final = {
    "weight": "backends are chosen by their load, not by weight",
    "order": "backends are chosen by their load, not in an order",
    "timeout": "patience is the same for all engines: engines.plain_timeout_s",
    "stream_timeout": "patience is the same for all engines: engines.first_token_base_s and token_gap_s",
    "max_budget": "money is not limited per deployment; limit the model's tenants or keys",
    "budget_duration": "money is not limited per deployment; limit the model's tenants or keys",
    "tags": "there is no routing by tags; give tenants their own pools",
    "extra_headers": "engines get no headers but ours",
    "headers": "engines get no headers but ours",
    "drop_params": "unknown parameters go on or are refused by the engine's dialect, see docs/reference/engines.md",
    "litellm_credential_name": "write the pool's api_key as {env: NAME}",
    **dict.fromkeys(("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "n", "extra_body"), _PARAMETER),
}
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]{1,256}")


class Deployment(msgspec.Struct, frozen=True):
    """One entry of `model_list` that is a self-hosted engine."""

    at: Path_
    params: dict[str, Any]
    info: dict[str, Any]
    served: str
    dialect: str
    url: str
    """The URL for the settings: an address, or `${NAME}`."""


def carry_models(source: Located, plan: ImportPlan) -> None:
    """Fill pools, models, limits and prices from `model_list`."""
    groups: dict[str, list[Deployment]] = {}
    for at, entry in enumerate(source.value("model_list") or []):
        path: Path_ = ("model_list", at)
        name = entry.get("model_name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _PRINTABLE.fullmatch(name):
            plan.leave(source, (*path, "model_name"), "is no name that a model can have here: printable ASCII without spaces")
        elif "*" in name:
            plan.leave(source, (*path, "model_name"), "is a pattern; models are named one by one")
        elif (deployment := _deployment(source, plan, path, entry)) is not None:
            groups.setdefault(name, []).append(deployment)
    taken: set[str] = set()
    ids: set[str] = set()
    same: dict[Any, str] = {}
    for name, deployments in groups.items():
        _group(source, plan, name, deployments, taken, ids, same)


def _deployment(source: Located, plan: ImportPlan, path: Path_, entry: dict[str, Any]) -> Deployment | None:
    params = entry.get("litellm_params")
    info = entry.get("model_info") or {}
    if not isinstance(params, dict) or not isinstance(info, dict) or not isinstance(params.get("model"), str):
        plan.leave(source, (*path, "litellm_params"), "has no model")
        return None
    at = (*path, "litellm_params")
    provider, _, served = params["model"].partition("/")
    if isinstance(params.get("custom_llm_provider"), str):
        prefixed = provider == params["custom_llm_provider"] and bool(served)
        provider, served = params["custom_llm_provider"], served if prefixed else params["model"]
    dialect = DIALECTS.get(provider)
    if dialect is None or not served or "*" in served:
        plan.leave(source, (*at, "model"), "is no self-hosted engine with OpenAI's API (hosted_vllm/…, or openai/… with api_base)")
        return None
    if info.get("mode") not in _SERVED_MODES:
        plan.leave(source, (*path, "model_info", "mode"), "is no chat, completion or embedding model")
        return None
    url = _url(source, plan, at, params)
    if url is None:
        return None
    _leave_unknown(source, plan, path, entry, params, info)
    # limits may also stand beside litellm_params, where LiteLLM reads them too
    merged = {key: value for key, value in entry.items() if key in RATES} | params
    return Deployment(at, merged, info, served, dialect, url)


def _url(source: Located, plan: ImportPlan, at: Path_, params: dict[str, Any]) -> str | None:
    key = "api_base" if "api_base" in params else "base_url"
    written = params.get(key)
    variable = environment_name(written)
    if variable is not None:
        plan.note(source, (*at, key), f"is read from {variable}, whose value must not end in /v1 here")
        return "${" + variable + "}"
    if not isinstance(written, str) or not written:
        plan.leave(source, at, "has no api_base, so it is a cloud service; only self-hosted engines are served")
        return None
    url = written.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        return checked_engine_url(url)
    except ValueError as error:
        plan.leave(source, (*at, key), str(error))
        return None


def _leave_unknown(
    source: Located, plan: ImportPlan, path: Path_, entry: dict[str, Any], params: dict[str, Any], info: dict[str, Any]
) -> None:
    for key, value in params.items():
        if key not in _READ and value is not None:
            plan.leave(source, (*path, "litellm_params", key), _WHY.get(key, "has no counterpart"))
    for key in info:
        if key not in COSTS and not _DESCRIPTIVE.fullmatch(key):
            plan.leave(source, (*path, "model_info", key), "has no counterpart")
    for key in entry:
        if key not in ("model_name", "litellm_params", "model_info", *RATES):
            plan.leave(source, (*path, key), "has no counterpart")


def _group(
    source: Located, plan: ImportPlan, name: str, deployments: list[Deployment], taken: set[str], ids: set[str], same: dict[Any, str]
) -> None:
    """Carry over one public model name as one pool: the deployments of the model that most of them serve."""
    kinds = Counter((d.served, d.dialect) for d in deployments)
    served, dialect = max(kinds, key=lambda kind: kinds[kind])
    by_url: dict[str, Deployment] = {}
    for d in deployments:
        if (d.served, d.dialect) != (served, dialect):
            plan.leave(source, (*d.at, "model"), f"is another model than most of {name!r}; one name leads to one pool")
        elif d.url in by_url:
            plan.note(source, d.at, "is an engine that this model has already; it is one backend")
        else:
            by_url[d.url] = d
    secret = _engine_key(source, plan, name, list(by_url.values()))
    mark = (served, dialect, secret, frozenset(by_url))
    if mark not in same:
        pool = same[mark] = slug(name, taken)
        backends = [{"id": _backend_id(pool, at, d, ids), "url": d.url} for at, d in enumerate(by_url.values(), 1)]
        entry: dict[str, Any] = {"name": pool, "model": served, "dialect": dialect}
        plan.pools.append(entry | ({"api_key": {"env": secret}} if secret else {}) | {"backends": backends})
    plan.models[name] = same[mark]
    _limits(source, plan, name, list(by_url.values()))
    _prices(source, plan, name, list(by_url.values()))


def _backend_id(pool: str, at: int, d: Deployment, ids: set[str]) -> str:
    own_id = d.info.get("id")
    return slug(own_id if isinstance(own_id, str) and len(own_id) <= 40 else f"{pool}-{at}", ids)


def _engine_key(source: Located, plan: ImportPlan, name: str, deployments: list[Deployment]) -> str | None:
    """The environment variable for the key of a pool's engines, or None. A key in the file is not copied: only a variable is named."""
    key_variable: str | None = None
    for at, d in enumerate(deployments):
        written = d.params.get("api_key")
        variable = environment_name(written)
        literal = variable is None and written is not None and str(written).lower() not in NO_KEY
        if literal:
            variable = re.sub(r"[^A-Z0-9]+", "_", f"{name}_ENGINE_KEY".upper()).strip("_")
            variable = variable if variable[0].isalpha() else f"KEY_{variable}"
            plan.note(source, (*d.at, "api_key"), f"is a key written out, which is not copied; put it into the environment as {variable}")
        if (at and variable != key_variable) or (at and literal and written != deployments[0].params.get("api_key")):
            plan.leave(source, (*d.at, "api_key"), "is not that of the model's first engine; the engines of a pool ask for one key")
        else:
            key_variable = variable
    return key_variable


def _limits(source: Located, plan: ImportPlan, name: str, deployments: list[Deployment]) -> None:
    for key, (meter, window) in RATES.items():
        having = [d for d in deployments if d.params.get(key) is not None]
        amounts = [whole(d.params[key]) for d in having]
        total = sum(amount for amount in amounts if amount is not None)
        for d, amount in zip(having, amounts, strict=True):
            if amount is None:
                plan.leave(source, (*d.at, key), "is no positive whole number")
            elif len(having) < len(deployments) or None in amounts:
                plan.leave(source, (*d.at, key), f"limits some engines of {name!r} and not all, so their sum limits nothing")
        if having and len(having) == len(deployments) and None not in amounts:
            plan.limit(source, (*deployments[0].at, key), model_scope(name), meter, window, total)
            if len(deployments) > 1:
                plan.note(
                    source,
                    (*deployments[0].at, key),
                    f"and those of {len(deployments) - 1} more engines are one limit of {name!r} of {total}",
                )


def _prices(source: Located, plan: ImportPlan, name: str, deployments: list[Deployment]) -> None:
    rates: dict[str, int] = {}
    for d in deployments:
        own_rates: dict[str, int] = {}
        for key, path, written in _costs(d):
            rate = _per_million(written)
            if rate is None:
                plan.leave(source, path, "is no price")
            else:
                own_rates |= dict.fromkeys(COSTS[key], rate)
        if rates and own_rates and own_rates != rates:
            plan.leave(source, d.at, f"costs something else than the first engine of {name!r}; a model has one price")
        rates = rates or own_rates
    if rates:
        plan.prices.append({"model": name, "revision": "*", "usd_per_mtok": {kind: dollars_of(rate) for kind, rate in rates.items()}})


def _costs(d: Deployment) -> Iterator[tuple[str, Path_, Any]]:
    for key in COSTS:
        if d.params.get(key) is not None:
            yield key, (*d.at, key), d.params[key]
        elif d.info.get(key) is not None:
            yield key, (*d.at[:-1], "model_info", key), d.info[key]


def _per_million(dollars_per_token: Any) -> int | None:
    """Nano-dollars per million tokens, or None for no price. Text is read too, because `1e-7` is text in YAML."""
    try:
        value = Decimal(str(dollars_per_token)) * 10**15
    except InvalidOperation:
        return None
    return int(value.to_integral_value()) if value.is_finite() and 0 <= value <= 10**15 else None


EVERYTHING: Final = Scope(Level.GLOBAL, "")
FALLBACKS: Final = (
    "write `fallback` at the model in the policy file, see docs/reference/policies.md; within a pool requests fail over by themselves"
)
HEALTH: Final = "failing engines are left out by their health, which needs no setting; see docs/reference/operations.md"
CACHE: Final = "there is no answer cache yet"
STORE: Final = "name the shared counter store in tidegate.yaml; its password belongs into the environment"
TRACING: Final = "metrics and the access log are always there; see docs/reference/metrics.md"
MINTED: Final = "keys, tenants and their limits are made with the admin API or `tidegate key`, `tidegate tenant`"
TOKENS: Final = "write the issuer into auth.jwt; see docs/reference/authentication.md"

ROUTER: Final = {
    "routing_strategy": "engines are chosen by their load (least_load)",
    "routing_strategy_args": "engines are chosen by their load (least_load)",
    **dict.fromkeys(("fallbacks", "default_fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "max_fallbacks"), FALLBACKS),
    **dict.fromkeys(("num_retries", "retry_after", "retry_policy", "model_group_retry_policy"), HEALTH),
    **dict.fromkeys(("allowed_fails", "allowed_fails_policy", "cooldown_time", "disable_cooldowns"), HEALTH),
    **dict.fromkeys(("redis_host", "redis_port", "redis_password", "redis_url", "redis_db"), STORE),
    **dict.fromkeys(("cache_responses", "caching_groups", "cache_kwargs"), CACHE),
    "enable_tag_filtering": "there is no routing by tags; give tenants their own pools",
    "stream_timeout": "is set as engines.first_token_base_s and token_gap_s",
    "enable_pre_call_checks": "engines refuse what exceeds their context, and the caller is told",
}
LITELLM: Final = {
    **{key: why for key, why in ROUTER.items() if why in (FALLBACKS, HEALTH)},
    **dict.fromkeys(("cache", "cache_params", "enable_redis_auth_cache"), CACHE),
    **dict.fromkeys(("success_callback", "failure_callback", "callbacks", "service_callback", "turn_off_message_logging"), TRACING),
    **dict.fromkeys(("set_verbose", "json_logs", "telemetry", "redact_user_api_key_info"), TRACING),
    **dict.fromkeys(
        ("default_team_settings", "default_team_params", "default_key_generate_params", "upperbound_key_generate_params"), MINTED
    ),
    **dict.fromkeys(("default_internal_user_params", "max_internal_user_budget", "key_generation_settings"), MINTED),
    "drop_params": "unknown parameters go on or are refused by the engine's dialect; see docs/reference/engines.md",
    "modify_params": "requests are not changed to suit an engine",
    "ssl_verify": "certificates of engines are always verified, against the system's authorities",
}
GENERAL: Final = {
    "master_key": "is not copied; changes need a token of their own: secrets.admin_token",
    "database_url": "Tidegate keeps a database of its own: stores.sql",
    "max_parallel_requests": "is per deployment; write a limit of the model, a tenant or a key",
    "enable_jwt_auth": TOKENS,
    "litellm_jwtauth": TOKENS,
    **dict.fromkeys(
        ("custom_auth", "custom_key_generate", "custom_sso"), "no code is run from configuration; see docs/reference/authentication.md"
    ),
    **dict.fromkeys(("alerting", "alerting_threshold", "alert_types"), TRACING),
    **dict.fromkeys(("background_health_checks", "health_check_interval"), HEALTH),
    **dict.fromkeys(("key_management_system", "key_management_settings"), "secrets are {file: …} or {env: …}"),
    "store_model_in_db": "backends that come and go are registered over the admin port",
    "pass_through_endpoints": "only the routes in docs/reference/api.md are served",
}
TOP: Final = {
    "environment_variables": "set them where the process is started; their values are not copied",
    "guardrails": "there are no guardrails yet",
    "mcp_servers": "tools are not served",
    "credential_list": "keys of engines are {env: NAME} in a pool; their values are not copied",
    "vector_store_registry": "vector stores are not served",
    "callback_settings": TRACING,
    "include": "import the included files too, or put them into one",
}
SECTIONS: Final = ("model_list", "router_settings", "litellm_settings", "general_settings")


def carry_sections(source: Located, plan: ImportPlan) -> None:
    """Fill aliases, timeouts and limits from every section but `model_list`."""
    for key in source.data:
        if key not in SECTIONS:
            plan.leave(source, (key,), TOP.get(key, "has no counterpart"))
    _section(source, plan, "router_settings", {"model_group_alias": _aliases, "timeout": _timeout}, ROUTER)
    _section(
        source, plan, "litellm_settings", {"request_timeout": _timeout, "max_budget": _budget, "budget_duration": _budget_period}, LITELLM
    )
    _section(source, plan, "general_settings", {"global_max_parallel_requests": _parallel}, GENERAL)


Carry = Callable[[Located, ImportPlan, Path_, Any], None]


def _section(source: Located, plan: ImportPlan, name: str, carried: dict[str, Carry], why: dict[str, str]) -> None:
    section = source.value(name)
    if section is None:
        return
    if not isinstance(section, dict):
        plan.leave(source, (name,), "is no mapping")
        return
    for key, value in section.items():
        if value is None:
            continue
        path: Path_ = (name, key)
        if key in carried:
            carried[key](source, plan, path, value)
        elif key == "routing_strategy" and value == "least-busy":
            plan.note(source, path, "is what least_load does")
        else:
            plan.leave(source, path, why.get(key, "has no counterpart"))


def _aliases(source: Located, plan: ImportPlan, path: Path_, aliases: Any) -> None:
    for alias, target in aliases.items() if isinstance(aliases, dict) else ():
        at = (*path, alias)
        group = target.get("model") if isinstance(target, dict) else target
        if not isinstance(group, str) or group not in plan.models:
            plan.leave(source, at, "stands for no model that was carried")
        elif alias in plan.models:
            plan.leave(source, at, "is the name of a model already")
        else:
            plan.models[alias] = plan.models[group]
            limited = any(limit["scope"] == {"level": "model", "name": group} for limit in plan.limits)
            priced = next((price for price in plan.prices if price["model"] == group), None)
            if priced is not None:
                plan.prices.append(priced | {"model": alias})
            if limited:
                plan.leave(source, at, f"is a name of its own, which the limits of {group!r} do not cover; give it limits")
            if isinstance(target, dict) and target.get("hidden"):
                plan.leave(source, (*at, "hidden"), "every model that may be used is listed")


def _timeout(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        plan.leave(source, path, "is no number of seconds up to a day")
        return
    plan.engines["plain_timeout_s"] = float(value)
    plan.note(source, path, "is engines.plain_timeout_s, for answers that are not streamed; streams have token_gap_s")


def _budget(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    amount = nanousd(value)
    duration = source.value("litellm_settings", "budget_duration")
    window = period(duration)
    if not amount:
        plan.leave(source, path, "is no amount of dollars; 0 is none")
    elif window is None:
        plan.leave(source, path, "has a budget_duration that is no day and no month; write it as a day's or a month's budget")
    else:
        plan.limit(source, path, EVERYTHING, Meter.COST_NANOUSD, window, amount)
        if window is not Window.EVER:
            plan.note(source, path, f"counts per calendar {window.value} in UTC")


def _budget_period(source: Located, plan: ImportPlan, path: Path_, _value: Any) -> None:
    if source.value("litellm_settings", "max_budget") is None:
        plan.leave(source, path, "says for how long, and no max_budget says how much")


def _parallel(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    amount = whole(value)
    if amount is None:
        plan.leave(source, path, "is no positive whole number")
    else:
        plan.limit(source, path, EVERYTHING, Meter.CONCURRENT_REQUESTS, Window.NOW, amount)
