"""SGLang's OpenAI server, run as 0.5.23; answers 200 to an unknown model and serves it."""

from typing import Annotated, Any, Final

import msgspec

from backends.dialects.dialect import Dialect, ErrorShape, Isolation, LoraCalls, Priority
from backends.dialects.fields import VLLM_ALONE, Fields
from backends.dialects.handover import Handover
from backends.dialects.structure import SGLANG
from backends.dialects.thinking import ThinkingFields
from backends.load_reports import MAX_REPORT_BYTES, LoadReport
from backends.signals import MAX_NUMBER, Signals
from domain.ask import Endpoint


class _SglangLoad(msgspec.Struct, gc=False):
    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    num_waiting_uncached_tokens: int | None = None
    num_used_tokens: int | None = None
    max_total_num_tokens: int | None = None
    total_prefill_uncached_tokens: int | None = None
    total_prefill_busy_us: int | None = None


MAX_RANKS: Final = 1000
"""Most data-parallel ranks in one reply: far above any deployment; bounds the time of the sums."""


class _Loads(msgspec.Struct):
    loads: Annotated[list[_SglangLoad], msgspec.Meta(max_length=MAX_RANKS)]


_decode = msgspec.json.Decoder(_Loads).decode
_REQUIRED: Final = ("running", "waiting", "kv_usage")


def read_loads(body: bytes, read_at: float) -> Signals:
    """The signals in the reply of `/v1/loads`, summed over data-parallel ranks. Raises ValueError for another reply."""
    try:
        loads = _decode(body).loads
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no list of loads: {error}") from None
    used = _sum(loads, "num_used_tokens")
    capacity = _sum(loads, "max_total_num_tokens")
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


def _sum(loads: list[_SglangLoad], field: str) -> int | None:
    values = [value for load in loads if (value := getattr(load, field)) is not None]
    return sum(values) if values else None


_POSITIONS: Final = ("running", "waiting", "kv_used_tokens", "kv_capacity_tokens", "rank", "waiting_uncached_tokens")
"""The fields of `LoadStat` by position, after its tag. Later positions (tokens with the queue's, most requests at once, prefill counters)
are read from `/v1/loads`."""

_decode_array = msgspec.msgpack.Decoder(list[Any]).decode


def read_report(payload: bytes) -> LoadReport:
    """Decode a `LoadStat` of the load push. Missing trailing fields are unknown, additional ones are ignored.

    Raises:
        ValueError: the bytes are no `LoadStat`.
    """
    if len(payload) > MAX_REPORT_BYTES:
        raise ValueError(f"{len(payload):,} bytes are no report")
    try:
        tag, *fields = _decode_array(payload)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise ValueError(f"no array in msgpack: {str(error)[:160]}") from None
    if tag != "LoadStat":
        shown = repr(tag[:40]) if isinstance(tag, str) else f"a {type(tag).__name__}"
        raise ValueError(f"the tag is {shown} and not 'LoadStat'")
    values: dict[str, int | None] = {}
    for name, value in zip(_POSITIONS, fields, strict=False):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValueError(f"{name} is a {type(value).__name__} and not a whole number")
        values[name] = value if value is not None and 0 <= value <= MAX_NUMBER else None
    if values.get("kv_capacity_tokens") == 0:
        values["kv_capacity_tokens"] = None  # SGLang's value for unknown
    return LoadReport(**values)


BOOTSTRAP: Final = Handover(
    at_once=True,
    field="bootstrap",
    prefill={"stream": False},
    prefill_without=frozenset({"stream_options"}),
    # the address that SGLang's own warm-up uses: such a request is computed, and its KV is not handed over
    alone={"bootstrap_host": "2.2.2.2", "bootstrap_room": 0},
    # how long the two engines wait for each other (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and ..._WAITING_TIMEOUT)
    lease_s=300.0,
    unsplit=frozenset({"echo"}),
)
"""`--disaggregation-mode`: an engine does prefill, or decode, or serves whole requests, never two of these. Both calls name the prefill
engine's bootstrap port and a room, a number that the gateway chooses. Read in the router of SGLang's own repository, and never run with two
engines."""

DIALECT: Final = Dialect(
    name="sglang",
    known_from="0.5.23, run on CPU and read in its sources",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=Isolation("cache_salt", frozenset(Endpoint)),
    signals_path="/v1/loads?include=core",
    read_signals=read_loads,
    # --schedule-low-priority-values-first reverses the order
    priority=Priority("priority", "higher", "--enable-priority-scheduling"),
    # a bare adapter name would be an unknown model, which SGLang answers with the base model
    lora_model="{base}:{adapter}",
    lora=LoraCalls("/load_lora_adapter", "/unload_lora_adapter", "lora_name", "lora_path"),
    errors=frozenset({ErrorShape.FLAT, ErrorShape.DETAIL}),
    fields=Fields(refuses={**VLLM_ALONE, "return_token_strs": ""}, structure=SGLANG, thinking=ThinkingFields()),
    drains="finishes requests in flight, then exits",
    proven=True,
    read_report=read_report,
    disaggregation=BOOTSTRAP,
    continues={"continue_final_message": True},
    # its /v1/score is another API: the probabilities of given tokens behind a prompt
    routes={
        **dict.fromkeys((Endpoint.SCORE, Endpoint.POOLING, Endpoint.TRANSLATIONS, Endpoint.SPEECH)),
        Endpoint.CLASSIFY: "/v1/classify",
    },
    tokenizes=("prompt",),
)
