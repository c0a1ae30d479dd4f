"""Carries the configuration of a LiteLLM proxy over into an `ImportPlan`, and gives a reason for each setting that is left.

`carry_models` reads `model_list`: deployments of self-hosted engines become backends of pools, their groups public model names. The other
sections are in `gateway/importing/litellm_sections.py`, people and their keys in `gateway/importing/litellm_people.py`.
"""

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from domain.mistakes import words
from gateway.config.addresses import checked_engine_url
from gateway.importing.plan import ImportPlan, environment_name, model_scope, slug, whole
from policies.parameters import Defaults
from policies.yaml.located import Located
from policies.yaml.problems import Path_
from tenancy.limits import Meter, Window
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
DEFAULTS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop"),
    "reasoning_effort",
)
"""Parameters of a deployment that LiteLLM sends where a request sets none; they have the same names in `parameters.defaults`."""
CAPS: Final = ("max_tokens", "max_completion_tokens")
"""The names of a deployment's default for the output of a request that sets no cap."""
_READ: Final = {"model", "api_base", "base_url", "api_key", "custom_llm_provider", "weight", *COSTS, *RATES, *DEFAULTS, *CAPS}
_DESCRIPTIVE: Final = re.compile(
    r"id|mode|base_model|max_(output_)?tokens|description|version|metadata|db_model|litellm_provider|supports_\w+"
)
"""Keys of `model_info` that only describe the model; engines report these facts themselves."""
_PATTERN: Final = "is a pattern; models are named one by one: write one entry for each model that the engine lists at /v1/models"
KINDS: Final = ("chat", "completion", "embedding", "rerank")
"""Values of `model_info.mode` that are a pool's `kind` under the same name."""
CONTENT: Final = {"supports_vision": "image", "supports_audio_input": "audio", "supports_video_input": "video"}
"""The pool's `modalities` beside `text`, by the keys of `model_info` that say them."""
_PARAMETER: Final = "requests go on as callers send them; give the engine its own defaults"
_WHY: Final = {
    "order": "backends are chosen by their load, not in an order",
    "timeout": "patience is the same for all engines: engines.plain_timeout_s",
    "stream_timeout": "patience is the same for all engines: engines.first_token_base_s and token_gap_s",
    "max_budget": "money is not limited per deployment; limit the model's tenants or keys",
    "budget_duration": "money is not limited per deployment; limit the model's tenants or keys",
    "tags": "there is no routing by tags; give tenants their own pools",
    "extra_headers": "engines get no headers but ours",
    "headers": "engines get no headers but ours",
    "drop_params": "unknown parameters go on or are refused by the engine's dialect, see docs/reference/engines.md",
    "guardrails": "write the rules in for_model.NAME.guards of the policy, where they apply to every request for the model",
    "litellm_credential_name": "write the pool's api_key as {env: NAME}",
    **dict.fromkeys(("n", "extra_body"), _PARAMETER),
}
MAX_CONTEXT_TOKENS: Final = 100_000_000
MAX_OUTPUT_TOKENS: Final = 1_000_000
"""Bounds of `context_tokens` and `max_output_tokens` in settings and policies."""
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


class PoolNames(msgspec.Struct):
    """The names that are given so far."""

    pools: set[str] = set()
    backends: set[str] = set()
    same: dict[Any, str] = {}
    """Pools by model, dialect, key and engines."""
    told: dict[str, dict[str, Any]] = {}
    """`kind` and `modalities` by pool, where the source says them."""


def carry_models(source: Located, plan: ImportPlan) -> None:
    """Fill pools, models, limits and prices from `model_list`."""
    groups: dict[str, list[Deployment]] = {}
    for at, entry in enumerate(source.value("model_list") or []):
        path: Path_ = ("model_list", at)
        name = entry.get("model_name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _PRINTABLE.fullmatch(name):
            plan.leave(source, (*path, "model_name"), "is no name that a model can have here: printable ASCII without spaces")
        elif "*" in name:
            plan.leave(source, (*path, "model_name"), _PATTERN)
        elif (deployment := _deployment(source, plan, path, entry)) is not None:
            groups.setdefault(name, []).append(deployment)
    names = PoolNames()
    for name, deployments in groups.items():
        _group(source, plan, name, deployments, names)


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
    if info.get("mode") is not None and info["mode"] not in KINDS:
        plan.leave(source, (*path, "model_info", "mode"), "is no chat, completion, embedding or rerank model")
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
        if key not in COSTS and key != "max_input_tokens" and not _DESCRIPTIVE.fullmatch(key):
            plan.leave(source, (*path, "model_info", key), "has no counterpart")
    described = [key for key in info if _DESCRIPTIVE.fullmatch(key) and key not in ("id", "mode") and not (key in CONTENT and info[key])]
    if described:
        plan.note(source, (*path, "model_info"), f"{', '.join(described)}: description of the model; needs no setting, the engines say it")
    for key in entry:
        if key not in ("model_name", "litellm_params", "model_info", *RATES):
            plan.leave(source, (*path, key), "has no counterpart")


def _group(source: Located, plan: ImportPlan, name: str, deployments: list[Deployment], names: PoolNames) -> None:
    """Carry over one public model name: one pool for each model that its deployments serve, and their weights where there are several."""
    kinds: dict[tuple[str, str], dict[str, Deployment]] = {}
    for d in deployments:
        by_url = kinds.setdefault((d.served, d.dialect), {})
        if d.url in by_url:
            plan.note(source, d.at, "is an engine that this model has already; it is one backend")
        else:
            by_url[d.url] = d
    pools = [_pool(source, plan, name, list(by_url.values()), names) for by_url in kinds.values()]
    plan.models[name] = pools[0]
    weights = [_weights(source, plan, list(by_url.values()), alone=len(pools) == 1) for by_url in kinds.values()]
    if len(pools) > 1:
        plan.shares[name] = [{"pool": pool, "weight": weight} for pool, weight in zip(pools, weights, strict=True)]
        plan.note(source, deployments[0].at, f"and {len(pools) - 1} more models answer as {name!r}: pools that share it by their weights")
    everything = [d for by_url in kinds.values() for d in by_url.values()]
    _limits(source, plan, name, everything)
    _prices(source, plan, name, everything)
    _defaults(source, plan, name, everything)


def _pool(source: Located, plan: ImportPlan, name: str, deployments: list[Deployment], names: PoolNames) -> str:
    """The pool of a public model name for deployments of one served model; pools with the same engines and key are one."""
    served, dialect = deployments[0].served, deployments[0].dialect
    secret = _engine_key(source, plan, name, deployments)
    mark = (served, dialect, secret, frozenset(d.url for d in deployments))
    told = _told(source, plan, deployments)
    if mark in names.same and told and told != (known := names.told[names.same[mark]]):
        if known:
            plan.leave(source, (*deployments[0].at[:-1], "model_info"), f"says otherwise of the engines of pool {names.same[mark]!r}")
        else:
            known.update(told)
            next(pool for pool in plan.pools if pool["name"] == names.same[mark]).update(told)
    if mark not in names.same:
        pool = names.same[mark] = slug(name, names.pools)
        backends: list[dict[str, Any]] = [
            {"id": _backend_id(pool, at, d, names.backends), "url": d.url} for at, d in enumerate(deployments, 1)
        ]
        for backend, d in zip(backends, deployments, strict=True):
            tokens = _context(source, plan, d)
            if tokens is not None:
                backend["context_tokens"] = tokens
        names.told[pool] = told
        entry: dict[str, Any] = {"name": pool, "model": served, "dialect": dialect, **told}
        plan.pools.append(entry | ({"api_key": {"env": secret}} if secret else {}) | {"backends": backends})
    return names.same[mark]


def _told(source: Located, plan: ImportPlan, deployments: list[Deployment]) -> dict[str, Any]:
    """What the model list tells callers of a pool (`kind`, `modalities`), where none of its deployments says otherwise of itself."""
    told: dict[str, Any] = {}
    saying = [d for d in deployments if d.info.get("mode") is not None]
    modes = {d.info["mode"] for d in saying}
    if len(modes) > 1:
        plan.leave(source, _info(saying[0], "mode"), "is not the same for all engines of this model; write the pool's kind")
    for mode in modes if len(modes) == 1 else ():
        unserved = "; the data port has no route of its own for it" if mode == "rerank" else ""
        plan.note(source, _info(saying[0], "mode"), f"is the pool's kind: {mode}{unserved}")
        told["kind"] = mode
    taken = []
    for key, content in CONTENT.items():
        having = [d for d in deployments if d.info.get(key)]
        if having and any(d.info.get(key) is False for d in deployments):
            plan.leave(source, _info(having[0], key), "is not the same for all engines of this model; write the pool's modalities")
        elif having:
            taken.append(content)
            plan.note(source, _info(having[0], key), f"is {content!r} in the pool's modalities")
    return told | ({"modalities": ["text", *taken]} if taken else {})


def _info(d: Deployment, key: str) -> Path_:
    return (*d.at[:-1], "model_info", key)


def _context(source: Located, plan: ImportPlan, d: Deployment) -> int | None:
    written = d.info.get("max_input_tokens")
    if written is None:
        return None
    path = _info(d, "max_input_tokens")
    tokens = whole(written)
    if tokens is None or tokens > MAX_CONTEXT_TOKENS:
        plan.leave(source, path, "is no positive whole number of tokens")
        return None
    plan.note(source, path, "is the backend's context_tokens: prompt and output together")
    return tokens


def _weights(source: Located, plan: ImportPlan, deployments: list[Deployment], *, alone: bool) -> float:
    """The weight of a pool: the sum of its engines' weights, 1 where an engine has none, as in LiteLLM."""
    total = 0.0
    for d in deployments:
        weight = d.params.get("weight", 1)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 10_000:
            plan.leave(source, (*d.at, "weight"), "is no weight above 0")
            weight = 1
        elif "weight" in d.params and alone:
            plan.leave(source, (*d.at, "weight"), "engines of one model are chosen by their load, not by weight")
        total += weight
    return total


def _defaults(source: Located, plan: ImportPlan, name: str, deployments: list[Deployment]) -> None:
    """Parameters that all engines of a model have alike become its defaults; a request does not know which engine it gets."""
    defaults: dict[str, Any] = {}
    treatment: dict[str, Any] = {}
    for key in (*DEFAULTS, *CAPS):
        having = [d for d in deployments if d.params.get(key) is not None]
        if not having:
            continue
        path = (*having[0].at, key)
        value = having[0].params[key]
        if len(having) < len(deployments) or any(d.params[key] != value for d in having):
            plan.leave(source, path, f"is not the same for all engines of {name!r}; {_PARAMETER}")
        elif key in CAPS:
            tokens = whole(value)
            if tokens is None or tokens > MAX_OUTPUT_TOKENS:
                plan.leave(source, path, "is no positive whole number of tokens")
            else:
                treatment["max_output_tokens"] = tokens
                plan.note(source, path, f"is for_model.{name}.max_output_tokens, for requests that set no cap of their own")
        elif (why := _no_default(key, value)) is not None:
            plan.leave(source, path, why)
        else:
            defaults[key] = [value] if key == "stop" and isinstance(value, str) else value
            plan.note(source, path, f"is for_model.{name}.parameters.defaults.{key}")
    if defaults:
        treatment["parameters"] = {"defaults": defaults}
    if treatment:
        plan.treatments[name] = treatment


def _no_default(key: str, value: Any) -> str | None:
    """Why a value can be no default here; None where it can."""
    try:
        Defaults.model_validate({key: [value] if key == "stop" and isinstance(value, str) else value})
    except ValidationError as error:
        return f"can be no default here: it {words(error.errors()[0])}"
    return None


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
