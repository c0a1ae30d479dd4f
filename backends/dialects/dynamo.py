"""NVIDIA Dynamo's frontend, itself a router in front of many workers: documented, never run here.

Read in ai-dynamo/dynamo, sources of 2026 around 1.6: `lib/llm/src/protocols/openai/` (`validate.rs` at 0285dda: unknown fields
are refused unless DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS is set, `cache_salt` goes to the worker; `common_ext.rs`,
`chat_completions.rs`), `lib/protocols/src/types/` (chat.rs at 05fa3a3, completion.rs at 4c97a5c), `lib/llm/src/http/service/`
(`health.rs`; `error.rs` at 09ca8c2: 529 when full), `lib/runtime/src/metrics/prometheus_names.rs`, and its documentation
(`nvext.agent_hints.priority`, higher first). One frontend is one backend of the gateway, however many workers it has; its own routing
comes after the gateway's. Adapters are loaded over the workers' system port, not over the frontend.
"""

from operator import sub
from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape, Isolation, Priority
from backends.dialects.fields import Fields
from backends.dialects.structure import DYNAMO
from backends.dialects.thinking import ThinkingFields
from backends.signals import SignalSource, SignalTable, total, whole
from domain.ask import Endpoint

_IN_FLIGHT: Final = ("dynamo_frontend_inflight_requests", "dynamo_frontend_inflight_requests_total")
_QUEUED: Final = "dynamo_frontend_queued_requests"

SIGNALS: Final = SignalTable(
    {
        "running": SignalSource(_IN_FLIGHT, total(), required=True, other=_QUEUED, join=sub),
        "waiting": SignalSource((_QUEUED,), total(), required=True),
        "waiting_uncached_tokens": SignalSource(("dynamo_frontend_worker_active_prefill_tokens",), total()),
        "generated_tokens": SignalSource(("dynamo_frontend_output_tokens_total",), total()),
        "block_size": SignalSource(("dynamo_frontend_model_kv_cache_block_size",), whole),
    }
)
"""The in-flight count includes the queued requests, and a request counts as queued until its first token. The series carry a model and
appear with its first request: until then the load of a fresh frontend is unknown. Memory is reported per worker, in blocks, and not
here."""

_GENERATION: Final = frozenset(
    {
        "allowed_token_ids",
        "detokenize",
        "frequency_penalty",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)

DIALECT: Final = Dialect(
    name="dynamo",
    known_from="sources and documentation around 1.6",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=Isolation("cache_salt", frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})),
    signals_path="/metrics",
    read_signals=SIGNALS.read,
    signals_reader=SIGNALS.reader,
    priority=Priority("nvext.agent_hints.priority", "higher", "--router-queue-threshold"),
    lora_model="{adapter}",
    lora=None,
    errors=frozenset({ErrorShape.FLAT}),
    fields=Fields(
        takes={
            Endpoint.CHAT: _GENERATION
            | {
                "chat_template_kwargs",
                "function_call",
                "functions",
                "max_completion_tokens",
                "messages",
                "metadata",
                "parallel_tool_calls",
                "reasoning_effort",
                "response_format",
                "return_tokens_as_token_ids",
                "service_tier",
                "store",
                "thinking",
                "tool_choice",
                "tools",
                "top_logprobs",
            },
            Endpoint.COMPLETIONS: _GENERATION | {"best_of", "echo", "prompt"},
            Endpoint.EMBEDDINGS: frozenset({"dimensions", "encoding_format", "input", "user"}),
        },
        not_at_default=frozenset({"stop"}),  # an empty list of stops is refused
        structure=DYNAMO,
        thinking=ThinkingFields(takes_object=True, from_effort=True),
    ),
    drains="health answers 503 from SIGTERM on",
    proven=False,
)
