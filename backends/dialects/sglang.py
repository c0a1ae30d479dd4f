"""SGLang's OpenAI server, run as 0.5.23; answers 200 to an unknown model and serves it."""

from typing import Final

import msgspec

from backends.dialects.dialect import Dialect, Isolation, LoraCalls, Priority, Shape
from backends.dialects.fields import Fields, instead_of
from backends.signals import Signals
from domain.ask import Endpoint


class _Load(msgspec.Struct, gc=False):
    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    num_waiting_uncached_tokens: int | None = None
    num_used_tokens: int | None = None
    max_total_num_tokens: int | None = None
    total_prefill_uncached_tokens: int | None = None
    total_prefill_busy_us: int | None = None


class _Loads(msgspec.Struct):
    loads: list[_Load]


_decode = msgspec.json.Decoder(_Loads).decode
_REQUIRED: Final = ("running", "waiting", "kv_usage")


def read_loads(body: bytes, read_at: float) -> Signals:
    """The answer of `/v1/loads`, summed over data-parallel ranks. Raises ValueError when it is something else."""
    try:
        loads = _decode(body).loads
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no list of loads: {error}") from None
    used, capacity = _sum(loads, "num_used_tokens"), _sum(loads, "max_total_num_tokens")
    busy_us = _sum(loads, "total_prefill_busy_us")
    values = {
        "running": _sum(loads, "num_running_reqs"),
        "waiting": _sum(loads, "num_waiting_reqs"),
        "waiting_uncached_tokens": _sum(loads, "num_waiting_uncached_tokens"),
        "kv_usage": used / capacity if used is not None and capacity else None,
        "kv_capacity_tokens": capacity,
        "prefill_tokens": _sum(loads, "total_prefill_uncached_tokens"),
        "prefill_busy_s": None if busy_us is None else busy_us / 1e6,
    }
    missing = tuple(name for name in _REQUIRED if values[name] is None)
    return msgspec.convert({**values, "read_at": read_at, "missing": missing}, Signals)


def _sum(loads: list[_Load], field: str) -> int | None:
    found = [value for load in loads if (value := getattr(load, field)) is not None]
    return sum(found) if found else None


DIALECT: Final = Dialect(
    name="sglang",
    known_from="0.5.23, run on CPU and read in its sources",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=Isolation("cache_salt", frozenset(Endpoint)),
    signals_path="/v1/loads?include=core",
    read_signals=read_loads,
    # --schedule-low-priority-values-first turns it round
    priority=Priority("priority", "higher", "--enable-priority-scheduling"),
    # a bare adapter name would be an unknown model, which SGLang answers with the base model
    lora_model="{base}:{adapter}",
    lora=LoraCalls("/load_lora_adapter", "/unload_lora_adapter", "lora_name", "lora_path"),
    errors=frozenset({Shape.FLAT, Shape.DETAIL}),
    fields=Fields(
        refuses=instead_of(frozenset({"json_schema", "regex", "ebnf"}), "send 'response_format', 'json_schema', 'regex' or 'ebnf'")
    ),
    drains="finishes requests in flight, then exits",
    proven=True,
)
