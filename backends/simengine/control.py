"""The simulated engine's other routes: health, models, metrics, tokens, load, and the remote control of its faults."""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from backends.simengine import shapes
from backends.simengine.answering import Refusal, chat_text
from backends.simengine.connection import SimConnection
from backends.simengine.faults import rule_of
from backends.simengine.text import tokens_of

if TYPE_CHECKING:
    from backends.simengine.server import SimEngine


def control(engine: "SimEngine", connection: SimConnection) -> None:
    """Answer a request that is not for inference."""
    method = connection.method
    path = connection.path
    settings = engine.settings
    if engine.loras.order(connection) or engine.halves.order(connection):
        return
    if path in ("/health", "/ping", "/health_generate"):
        connection.reply(200, b"")
    elif path == "/version":
        connection.reply(200, b'{"version":"simulated"}')
    elif path == "/v1/models" or path.startswith("/v1/models/"):
        _models(engine, connection, path)
    elif path == "/metrics":
        values = _values(engine)
        body = shapes.metrics(
            settings.dialect, settings.models[0], values, settings.block_size, engine.batcher.kv.blocks, engine.started_unix
        )
        body += _lora_metrics(engine)
        connection.reply(200, body, "text/plain; version=0.0.4; charset=utf-8")
    elif path == "/load" and settings.dialect == "vllm":
        connection.reply(200, shapes.encode({"server_load": engine.in_flight}))
    elif path == "/v1/loads" and settings.dialect == "sglang":
        connection.reply(200, shapes.encode(_loads(engine)))
    elif path in ("/tokenize", "/v1/tokenize") and method == "POST":
        _tokenize(engine, connection)
    elif path == "/sim/state":
        connection.reply(200, shapes.encode({"in_flight": engine.in_flight, "received": engine.count, **_values(engine)}))
    elif path == "/sim/drain" and method == "POST":
        engine.draining = True
        connection.reply(200, b"{}")
    elif path in ("/reset_prefix_cache", "/flush_cache") and method == "POST":
        _forget_prefixes(engine)
        connection.reply(200, b"")
    elif path == "/sim/faults" and method == "POST":
        _faults(engine, connection)
    else:
        connection.reply(404, b'{"detail":"Not Found"}')


def _forget_prefixes(engine: "SimEngine") -> None:
    """Clear the prefix cache, unless a sequence runs."""
    if not engine.batcher.kv.used:
        engine.batcher.kv.clear()
        if engine.kv_events is not None:
            engine.kv_events.cleared()
            engine.kv_events.flush()


def _models(engine: "SimEngine", connection: SimConnection, path: str) -> None:
    settings = engine.settings
    cards = [
        {
            "id": m,
            "object": "model",
            "created": int(engine.started_unix),
            "owned_by": settings.dialect,
            "max_model_len": settings.max_model_len,
        }
        for m in settings.models
    ]
    cards += engine.loras.cards()
    if path == "/v1/models":
        connection.reply(200, shapes.encode({"object": "list", "data": cards}))
        return
    model = next((card for card in cards if f"/v1/models/{card['id']}" == path), None)
    body = shapes.encode(model) if model else shapes.error(settings.dialect, 404, "The model does not exist.", "NotFoundError")
    connection.reply(200 if model else 404, body)


def _tokenize(engine: "SimEngine", connection: SimConnection) -> None:
    try:
        request = msgspec.json.decode(connection.body)
        text = chat_text(request["messages"]) if "messages" in request else request["prompt"]
    except (msgspec.DecodeError, KeyError, TypeError, Refusal):
        connection.reply(400, shapes.error(engine.settings.dialect, 400, "prompt or messages needed", "Bad Request"))
        return
    tokens = tokens_of(text)
    connection.reply(200, shapes.encode({"count": len(tokens), "max_model_len": engine.settings.max_model_len, "tokens": tokens}))


def _faults(engine: "SimEngine", connection: SimConnection) -> None:
    """`{"standing": [rules]}` replaces the standing rules, `{"next": [rules]}` gives one to each of the next requests."""
    try:
        faults = msgspec.json.decode(connection.body)
        standing = faults.get("standing")
        following = faults.get("next", [])
        if standing is not None:
            engine.misbehave([rule_of(rule) for rule in standing])
        engine.inject([rule_of(rule) for rule in following])
    except (ValueError, AttributeError, TypeError) as error:
        connection.reply(400, shapes.encode({"detail": str(error)}))
        return
    connection.reply(200, b"{}")


def _lora_metrics(engine: "SimEngine") -> bytes:
    """vLLM's series of adapters in use: names in labels, the time as the value."""
    settings = engine.settings
    if not settings.max_loras or settings.dialect != "vllm":
        return b""
    running = ",".join(sorted(engine.models_in_use & engine.loras.loaded.keys()))
    labels = f'max_lora="{settings.max_loras}",running_lora_adapters="{running}",waiting_lora_adapters=""'
    return f"vllm:lora_requests_info{{{labels}}} {time.time()}\n".encode()


def _values(engine: "SimEngine") -> dict[str, float]:
    batcher = engine.batcher
    counters = batcher.counters
    used = batcher.kv.used * batcher.block_size
    return {
        "running": len(batcher.running),
        "waiting": len(batcher.waiting),
        "queued_tokens": batcher.queued_tokens,
        "kv_usage": batcher.kv_usage,
        "kv_used_tokens": used,
        "kv_tokens": batcher.kv.blocks * batcher.block_size,
        "hit_rate": counters.prefix_hits / counters.prefix_queries if counters.prefix_queries else 0.0,
        **{field: getattr(counters, field) for field in counters.__slots__},
        **engine.halves.values(),
    }


def _loads(engine: "SimEngine") -> dict[str, Any]:
    values = _values(engine)
    load = {
        "dp_rank": 0,
        "num_running_reqs": values["running"],
        "num_waiting_reqs": values["waiting"],
        "num_waiting_uncached_tokens": values["queued_tokens"],
        "num_used_tokens": values["kv_used_tokens"],
        "max_total_num_tokens": values["kv_tokens"],
        "max_running_requests": engine.settings.max_num_seqs,
        "token_usage": values["kv_usage"],
        "cache_hit_rate": values["hit_rate"],
        "total_prefill_uncached_tokens": values["prompt_tokens"] - values["prefix_hits"] - values["handed_tokens"],
        "total_prefill_busy_us": int(values["prefill_ms"] * 1000),
    }
    return {"version": "simulated", "loads": [load]}
