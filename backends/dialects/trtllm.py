"""TensorRT-LLM's server, `trtllm-serve`: documented, never run here.

Read in NVIDIA/TensorRT-LLM, sources of 2026 between 1.2 and 1.3: `tensorrt_llm/serve/openai_protocol.py` (0076e93: every model
forbids unknown fields; `priority` is a share between 0 and 1; completions have no `cache_salt`), `serve/openai_server.py`
(00057725: routes, `{"error": "…"}` for validation, flat errors for the rest, list of one model named by its folder) and
`metrics/collector.py` (050f80d: series). `/metrics` is a JSON queue of iteration statistics that each reader empties for the
next one; Prometheus text is under `/prometheus/metrics` and needs `return_perf_metrics: true` in the server's options file.
"""

from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape, Isolation, Priority
from backends.dialects.fields import Fields
from backends.dialects.thinking import ThinkingFields
from backends.signals import SignalSource, SignalTable, mean, total, whole
from domain.ask import Endpoint

SIGNALS: Final = SignalTable(
    {
        "running": SignalSource(("trtllm_num_requests_running",), total(), required=True),
        "waiting": SignalSource(("trtllm_num_requests_waiting",), total(), required=True),
        "kv_usage": SignalSource(("trtllm_kv_cache_utilization",), mean, required=True),
        "kv_capacity_tokens": SignalSource(("trtllm_kv_cache_max_blocks",), total(), other="trtllm_kv_cache_tokens_per_block"),
        "block_size": SignalSource(("trtllm_kv_cache_tokens_per_block",), whole),
        "prefix_queries": SignalSource(("trtllm_prompt_tokens_total",), total()),
        "generated_tokens": SignalSource(("trtllm_generation_tokens_total",), total()),
        "prefix_hits": SignalSource(("trtllm_prompt_cached_tokens_total",), total()),
    }
)
"""Releases before 1.2 report the share of KV in use only, so that their queues are unknown."""

_GENERATION: Final = frozenset(
    {
        "best_of",
        "early_stopping",
        "echo",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "repetition_penalty",
        "response_format",
        "seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "thinking_token_budget",
        "top_k",
        "top_p",
        "top_p_min",
        "truncate_prompt_tokens",
        "user",
    }
)

DIALECT: Final = Dialect(
    name="trtllm",
    known_from="sources between 1.2 and 1.3",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=Isolation("cache_salt", frozenset({Endpoint.CHAT})),
    signals_path="/prometheus/metrics",
    read_signals=SIGNALS.read,
    signals_reader=SIGNALS.reader,
    priority=Priority("priority", "higher", "scheduler_config.waiting_queue_policy=priority", share=True),
    lora_model=None,  # needs `lora_request` with a path on the server and a number, which callers must not set
    lora=None,
    errors=frozenset({ErrorShape.FLAT, ErrorShape.TEXT, ErrorShape.DETAIL}),
    fields=Fields(
        takes={
            Endpoint.CHAT: _GENERATION
            | {
                "add_generation_prompt",
                "add_special_tokens",
                "chat_template_kwargs",
                "documents",
                "max_completion_tokens",
                "messages",
                "parallel_tool_calls",
                "reasoning_effort",
                "thinking",
                "tool_choice",
                "tools",
                "top_logprobs",
            },
            Endpoint.COMPLETIONS: _GENERATION | {"add_special_tokens", "prompt"},
            Endpoint.EMBEDDINGS: frozenset({"add_special_tokens", "dimensions", "encoding_format", "input", "user"}),
        },
        # `reasoning_effort: "none"` is Kimi's alone; other models' templates keep thinking, and older releases refuse the word
        thinking=ThinkingFields(variables=(), takes_object=True, for_none="enable_thinking"),
        not_at_default=frozenset({"top_k"}),  # -1 is another engine's word for "no bound"
    ),
    drains="uvicorn's: takes no more connections and waits for open requests",
    proven=False,
)
