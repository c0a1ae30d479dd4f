"""Carries the sections of a LiteLLM proxy's configuration beside `model_list` over into an `ImportPlan`.

`carry_sections` carries aliases, fallbacks, time-outs and budgets over; every other setting is left with its reason.
"""

from collections.abc import Callable
from typing import Any, Final

from gateway.importing.litellm_fallbacks import SETTINGS as FALLBACK_SETTINGS
from gateway.importing.litellm_fallbacks import carry_fallbacks
from gateway.importing.litellm_guardrails import OLDER, carry_guardrails
from gateway.importing.plan import NO_PERIOD, ImportPlan, nanousd, period, period_in_words, whole
from policies.yaml.located import Located
from policies.yaml.problems import Path_
from tenancy.limits import Level, Meter, Scope, Window

EVERYTHING: Final = Scope(Level.GLOBAL, "")
HEALTH: Final = "failing engines are left out by their health, which needs no setting; see docs/reference/operations.md"
STRATEGY: Final = "engines are chosen by their predicted latency, the default; see docs/explanation/routing.md for the others"
CACHE: Final = "there is no answer cache yet"
STORE: Final = "name the shared counter store in tidegate.yaml; its password belongs into the environment"
TRACING: Final = "metrics and the access log are always there; see docs/reference/metrics.md"
MINTED: Final = "keys, tenants and their limits are made with the admin API or `tidegate key`, `tidegate tenant`"
TOKENS: Final = "write the issuer into auth.jwt; see docs/reference/authentication.md"

ROUTER: Final = {
    **dict.fromkeys(("routing_strategy", "routing_strategy_args"), STRATEGY),
    "max_fallbacks": "a fallback list is followed to its end, at most four models; within a pool requests fail over by themselves",
    **dict.fromkeys(("num_retries", "retry_after", "retry_policy", "model_group_retry_policy"), HEALTH),
    **dict.fromkeys(("allowed_fails", "allowed_fails_policy", "cooldown_time", "disable_cooldowns"), HEALTH),
    **dict.fromkeys(("redis_host", "redis_port", "redis_password", "redis_url", "redis_db"), STORE),
    **dict.fromkeys(("cache_responses", "caching_groups", "cache_kwargs"), CACHE),
    "enable_tag_filtering": "there is no routing by tags; give tenants their own pools",
    "stream_timeout": "is set as engines.first_token_base_s and token_gap_s",
    "enable_pre_call_checks": "engines refuse what exceeds their context, and the caller is told",
}
LITELLM: Final = {
    **{key: why for key, why in ROUTER.items() if key == "max_fallbacks" or why == HEALTH},
    **dict.fromkeys(("cache", "cache_params", "enable_redis_auth_cache"), CACHE),
    **dict.fromkeys(("success_callback", "failure_callback", "callbacks", "service_callback", "turn_off_message_logging"), TRACING),
    **dict.fromkeys(("set_verbose", "json_logs", "telemetry", "redact_user_api_key_info"), TRACING),
    **dict.fromkeys(
        ("default_team_settings", "default_team_params", "default_key_generate_params", "upperbound_key_generate_params"), MINTED
    ),
    **dict.fromkeys(("default_internal_user_params", "max_internal_user_budget", "key_generation_settings"), MINTED),
    "drop_params": "unknown parameters go on or are refused by the engine's dialect; see docs/reference/engines.md",
    "guardrails": OLDER,
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
    "mcp_servers": "tools are not served",
    "credential_list": "keys of engines are {env: NAME} in a pool; their values are not copied",
    "vector_store_registry": "vector stores are not served",
    "callback_settings": TRACING,
    "include": "import the included files too, or put them into one",
}
SECTIONS: Final = ("model_list", "router_settings", "litellm_settings", "general_settings", "guardrails")


def carry_sections(source: Located, plan: ImportPlan) -> None:
    """Fill aliases, timeouts, limits and guard rules from every section but `model_list`."""
    for key in source.data:
        if key not in SECTIONS:
            plan.leave(source, (key,), TOP.get(key, "has no counterpart"))
    _section(source, plan, "router_settings", {"model_group_alias": _aliases, "timeout": _timeout}, ROUTER)
    timeout = _weaker_timeout if source.value("router_settings", "timeout") is not None else _timeout
    budget = {"max_budget": _budget, "budget_duration": _budget_period}
    hooks = dict.fromkeys(("callbacks", "success_callback", "failure_callback"), _callbacks)
    _section(source, plan, "litellm_settings", {"request_timeout": timeout, **budget, **hooks}, LITELLM)
    _section(source, plan, "general_settings", {"global_max_parallel_requests": _parallel}, GENERAL)
    carry_fallbacks(source, plan)
    carry_guardrails(source, plan)


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
        if key in FALLBACK_SETTINGS and name != "general_settings":
            continue  # `carry_fallbacks` reads them once all names are known
        if key in carried:
            carried[key](source, plan, path, value)
        elif key == "routing_strategy" and value == "least-busy":
            plan.routing = "least_load"
            plan.note(source, path, "is routing: least_load in the policy for everyone")
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
            plan.aliases[alias] = plan.aliases.get(group, group)
            if isinstance(target, dict) and target.get("hidden"):
                plan.leave(source, (*at, "hidden"), "every model that may be used is listed")


def _timeout(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        plan.leave(source, path, "is no number of seconds up to a day")
        return
    plan.engines["plain_timeout_s"] = float(value)
    plan.note(source, path, "is engines.plain_timeout_s, for answers that are not streamed; streams have token_gap_s")


def _weaker_timeout(source: Located, plan: ImportPlan, path: Path_, _value: Any) -> None:
    plan.note(source, path, "has no effect in LiteLLM beside router_settings.timeout, which is carried")


def _budget(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    amount = nanousd(value)
    duration = source.value("litellm_settings", "budget_duration")
    window = period(duration)
    if not amount:
        plan.leave(source, path, "is no amount of dollars; 0 is none")
    elif window is None:
        plan.leave(source, path, NO_PERIOD)
    else:
        plan.limit(source, path, EVERYTHING, Meter.COST_NANOUSD, window, amount)
        if words := period_in_words(window):
            plan.note(source, path, words)


def _budget_period(source: Located, plan: ImportPlan, path: Path_, _value: Any) -> None:
    if source.value("litellm_settings", "max_budget") is None:
        plan.leave(source, path, "says for how long, and no max_budget says how much")


GUARDING: Final = frozenset({"presidio", "hide_secrets", "detect_prompt_injection", "llmguard_moderations", "llamaguard_moderations"}) | {
    "lakera_prompt_injection",
    "google_text_moderation",
    "openai_moderations",
    "banned_keywords",
}
"""Callbacks that guard requests."""


def _callbacks(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    named = [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]
    guarding = [name for name in named if name in GUARDING]
    if guarding:
        plan.leave(source, path, f"{', '.join(guarding)}: {OLDER}")
    if len(guarding) < len(named) or not named:
        plan.leave(source, path, TRACING)


def _parallel(source: Located, plan: ImportPlan, path: Path_, value: Any) -> None:
    amount = whole(value)
    if amount is None:
        plan.leave(source, path, "is no positive whole number")
    else:
        plan.limit(source, path, EVERYTHING, Meter.CONCURRENT_REQUESTS, Window.NOW, amount)
