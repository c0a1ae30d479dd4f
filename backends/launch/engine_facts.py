"""The settings of a running engine, from the replies of its own endpoints. Pure; None means that the engine does not report it.

vLLM reports its cache settings in `/metrics`, and the rest in `/server_info` only with VLLM_SERVER_DEV_MODE=1. SGLang reports everything in
`/server_info`. Whether usage carries cached tokens is seen in an answer of one token.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from backends.prometheus_text import WantedSeries

MODELS: Final = "/v1/models"
METRICS: Final = "/metrics"
VLLM_EVENTS: Final = "/kv_event_sources"
VLLM_INFO: Final = "/server_info?config_format=json"
SGLANG_INFO: Final = "/server_info"
COMPLETION: Final = "/v1/completions"
"""Called with POST, for one token."""

LLAMACPP_INFO: Final = "/props"
PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": (MODELS, METRICS, VLLM_EVENTS, VLLM_INFO),
    "sglang": (MODELS, SGLANG_INFO),
    "llamacpp": (MODELS, LLAMACPP_INFO),
}
"""The paths read of each kind of engine; of any other, the model list alone."""
MODEL_PATH: Final[Mapping[str, str]] = {"vllm": MODELS, "sglang": SGLANG_INFO, "llamacpp": LLAMACPP_INFO}
"""The path whose reply says where an engine took its model from (`model_paths`)."""

_WANTED: Final = WantedSeries(("vllm:cache_config_info", "vllm:lora_requests_info"))


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a running engine. None: it does not report the setting, or did not answer."""

    served_names: tuple[str, ...] | None = None
    """Names of models, without adapters."""
    context: int | None = None
    """Tokens, prompt and answer."""
    block_size: int | None = None
    blocks: int | None = None
    """Number of KV blocks."""
    prefix_caching: bool | None = None
    hash_algorithm: str | None = None
    kv_events: bool | None = None
    events_endpoint: str | None = None
    replay: bool | None = None
    sequences: int | None = None
    """Most sequences it runs at once."""
    admitted: int | None = None
    """Most requests it accepts before it answers 503; 0: no limit."""
    lora: bool | None = None
    lora_slots: int | None = None
    lora_rank: int | None = None
    lora_held: int | None = None
    """Most adapters it keeps ready, those not in any batch included."""
    usage_details: bool | None = None
    priority: str | None = None
    """`lower first`, `higher first` or `off`."""
    grace_s: float | None = None
    """How long it drains on SIGTERM, seconds."""


def read_facts(engine: str, replies: Mapping[str, bytes]) -> EngineFacts:
    """The facts in these replies, by path; a missing path was not answered. A reply that cannot be decoded counts as not reported."""
    names, context = _models(replies.get(MODELS))
    details = _usage_details(replies.get(COMPLETION))
    if engine == "vllm":
        return _vllm(replies, names, context, details)
    if engine == "sglang":
        return _sglang(_document(replies.get(SGLANG_INFO)), names, context)
    return EngineFacts(served_names=names, context=context, usage_details=details)


def model_paths(engine: str, replies: Mapping[str, bytes]) -> tuple[str, ...]:
    """The folders, or names of the hub, from which the engine says it took its tokenizer or model, the likeliest first.

    vLLM tells it as the `root` of its base model, SGLang in its server's settings, llama.cpp as the file in the folder.
    """
    if engine == "sglang":
        info = _document(replies.get(SGLANG_INFO))
        told = [info.get("tokenizer_path"), info.get("model_path")]
    elif engine == "llamacpp":
        file = _document(replies.get(LLAMACPP_INFO)).get("model_path")
        told = [file.rpartition("/")[0]] if isinstance(file, str) else []
    else:
        listed = _document(replies.get(MODELS)).get("data")
        cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
        told = [card.get("root") for card in cards if not card.get("parent")] if engine == "vllm" else []
    return tuple(dict.fromkeys(path for path in told if isinstance(path, str) and path))


def _vllm(replies: Mapping[str, bytes], names: tuple[str, ...] | None, context: int | None, details: bool | None) -> EngineFacts:
    samples = _WANTED.find(replies.get(METRICS, b""))
    cache = samples["vllm:cache_config_info"][0].labels if "vllm:cache_config_info" in samples else {}
    adapters = samples["vllm:lora_requests_info"][0].labels if "vllm:lora_requests_info" in samples else {}
    info = _document(replies.get(VLLM_INFO)).get("vllm_config")
    settings = info if isinstance(info, dict) else {}
    scheduler = _part(settings, "scheduler_config")
    lora = _part(settings, "lora_config")
    sources = _document(replies.get(VLLM_EVENTS)) if VLLM_EVENTS in replies else None
    source = next((entry for entry in sources.values() if isinstance(entry, dict)), {}) if sources is not None else {}
    policy = scheduler.get("policy")
    return EngineFacts(
        served_names=names,
        context=context,
        block_size=_whole(cache.get("block_size")),
        blocks=_whole(cache.get("num_gpu_blocks")),
        prefix_caching={"True": True, "False": False}.get(cache.get("enable_prefix_caching", "")),
        hash_algorithm=cache.get("prefix_caching_hash_algo"),
        kv_events=None if sources is None else bool(source),
        events_endpoint=source.get("endpoint"),
        replay=bool(source.get("replay_endpoint")) if source else None,
        sequences=_whole(scheduler.get("max_num_seqs")),
        admitted=(_whole(scheduler["max_num_queued_reqs"]) or 0) if "max_num_queued_reqs" in scheduler else None,
        lora=bool(settings["lora_config"]) if "lora_config" in settings else (True if adapters else None),
        lora_slots=_whole(lora.get("max_loras", adapters.get("max_lora"))),
        lora_rank=_whole(lora.get("max_lora_rank")),
        lora_held=_whole(lora.get("max_cpu_loras")),
        usage_details=details,
        priority=None if policy is None else "lower first" if policy == "priority" else "off",
        grace_s=_whole(settings.get("shutdown_timeout")),
    )


def _sglang(settings: dict[str, Any], names: tuple[str, ...] | None, context: int | None) -> EngineFacts:
    if "page_size" not in settings:  # some other document
        return EngineFacts(served_names=names, context=context)
    events = settings.get("kv_events_config")
    parsed = _document(events.encode()) if isinstance(events, str) else events if isinstance(events, dict) else {}
    running = _whole(settings.get("max_running_requests"))
    waiting = _whole(settings.get("max_queued_requests"))
    first = "lower first" if settings.get("schedule_low_priority_values_first") is True else "higher first"
    lora = settings.get("enable_lora") is True or bool(settings.get("lora_paths"))
    page = _whole(settings.get("page_size"))
    total = _whole(settings.get("max_total_num_tokens"))
    return EngineFacts(
        served_names=names,
        context=context if context is not None else _whole(settings.get("context_length")),
        block_size=page,
        blocks=None if not page or total is None else total // page,
        prefix_caching=settings.get("disable_radix_cache") is not True,
        kv_events=parsed.get("publisher") == "zmq",
        events_endpoint=parsed.get("endpoint"),
        replay=bool(parsed.get("replay_endpoint")) if parsed else None,
        sequences=running,
        admitted=0 if waiting is None else (running or 0) + waiting,
        lora=lora,
        lora_slots=_whole(settings.get("max_loras_per_batch")) if lora else None,
        lora_rank=_whole(settings.get("max_lora_rank")) if lora else None,
        lora_held=_whole(settings.get("max_loaded_loras")) if lora else None,
        usage_details=settings.get("enable_cache_report") is True,
        priority=first if settings.get("enable_priority_scheduling") is True else "off",
    )


def _models(body: bytes | None) -> tuple[tuple[str, ...] | None, int | None]:
    """The names of the base models, and the context of the first; adapters have a parent."""
    listed = _document(body).get("data")
    if not isinstance(listed, list):
        return None, None
    base = [model for model in listed if isinstance(model, dict) and not model.get("parent") and isinstance(model.get("id"), str)]
    context = base[0].get("max_model_len") if base else None
    return tuple(model["id"] for model in base), _whole(context)


def _usage_details(body: bytes | None) -> bool | None:
    usage = _document(body).get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    return isinstance(details, dict) and details.get("cached_tokens") is not None


def _document(body: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def _whole(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None
