"""vLLM's OpenAI server, run as 0.32; health is 503 only when the engine core is dead."""

from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape, Isolation, LoraCalls, Priority
from backends.dialects.fields import Fields
from backends.dialects.handover import Handover
from backends.dialects.structure import VLLM
from backends.dialects.thinking import ThinkingFields
from backends.signals import SignalSource, SignalTable, first, label, mean, none_set, product, total, words
from domain.ask import Endpoint

SIGNALS: Final = SignalTable(
    {
        "running": SignalSource(("vllm:num_requests_running",), total(), required=True),
        "waiting": SignalSource(("vllm:num_requests_waiting",), total(), required=True),
        "kv_usage": SignalSource(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), mean, required=True),
        "kv_capacity_tokens": SignalSource(("vllm:cache_config_info",), product("num_gpu_blocks", "block_size")),
        "block_size": SignalSource(("vllm:cache_config_info",), label("block_size")),
        "prefix_queries": SignalSource(("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"), total()),
        "prefix_hits": SignalSource(("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), total()),
        "prefill_tokens": SignalSource(("vllm:prompt_tokens_by_source_total",), total(source="local_compute")),
        "generated_tokens": SignalSource(("vllm:generation_tokens_total",), total()),
        "preemptions": SignalSource(("vllm:num_preemptions_total",), total()),
        "asleep": SignalSource(("vllm:engine_sleep_state",), none_set(sleep_state="awake")),
        "started_unix": SignalSource(("process_start_time_seconds",), first),
        "loras": SignalSource(("vllm:lora_requests_info",), words("running_lora_adapters", "waiting_lora_adapters")),
    }
)
"""The series that are read of vLLM's /metrics; `SignalTable.read` (`backends/signals.py`) turns the page into `Signals`. Series names of
0.32 first, then older ones; the `gpu_…` names are of releases before 0.10."""

NIXL: Final = Handover(
    at_once=False,
    field="kv_transfer_params",
    asks={
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    },
    prefill={"stream": False, "max_tokens": 1},
    prefill_if_there={"max_completion_tokens": 1},
    prefill_without=frozenset({"stream_options", "min_tokens", "min_completion_tokens"}),
    pairs_whole=True,
    unsplit=frozenset({"prompt_logprobs", "echo"}),
)
"""The NIXL connector's two calls, as the proxy in vLLM's own tests makes them. The second reads the KV from the first engine, which frees
it there; KV that is never read is freed when its lease ends (30 s since 0.33, `VLLM_NIXL_ABORT_REQUEST_TIMEOUT`, 480 s, before). Read in
the sources, and never run with two engines."""

DIALECT: Final = Dialect(
    name="vllm",
    known_from="0.32, run; 0.33, read in its sources",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    ids_from_requests=True,
    isolation=Isolation("cache_salt", frozenset(endpoint for endpoint in Endpoint if not endpoint.duplex)),
    signals_path="/metrics",
    read_signals=SIGNALS.read,
    signals_reader=SIGNALS.reader,
    priority=Priority("priority", "lower", "--scheduling-policy priority"),
    lora_model="{adapter}",
    lora=LoraCalls("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "lora_name", "lora_path"),
    errors=frozenset({ErrorShape.OBJECT, ErrorShape.TEXT, ErrorShape.DETAIL}),
    fields=Fields(structure=VLLM, thinking=ThinkingFields()),
    drains="finishes requests for `--shutdown-timeout` seconds; with its default, 0, streams hang without data or close",
    proven=True,
    disaggregation=NIXL,
    pools_messages=True,
    realtime=True,
    continues={"continue_final_message": True, "add_generation_prompt": False},
    tokenizes=("prompt", "messages"),
)
