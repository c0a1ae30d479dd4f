"""Hugging Face's Text Generation Inference: documented, never run here. The project is archived; 3.3.7 is its last release.

Read in huggingface/text-generation-inference at db931fc (3.3.7): `router/src/lib.rs` (requests), `server.rs` (routes, statuses),
`infer/mod.rs`, `validation.rs` (errors), `backends/v3` (metrics), `launcher/src/main.rs` (SIGTERM). It ignores unknown fields, with one
exception that is worse: in chats `presence_penalty` is read as `repetition_penalty` less 2, so that the harmless 0 of many clients doubles
the penalty. `n` and `logit_bias` are declared and unused, `top_p` must be below 1, `stop` must be a list. The `model` of a request names an
adapter: a request for one that was not loaded is answered by the base model, with 200.
"""

from operator import truediv
from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape
from backends.dialects.fields import Fields
from backends.signals import SignalSource, SignalTable, total
from domain.ask import Endpoint

SIGNALS: Final = SignalTable(
    {
        "running": SignalSource(("tgi_batch_current_size",), total(), required=True),
        "waiting": SignalSource(("tgi_queue_size",), total(), required=True),
        "kv_usage": SignalSource(("tgi_batch_current_max_tokens",), total(), other="tgi_batch_max_total_tokens", join=truediv),
        "generated_tokens": SignalSource(("tgi_request_generated_tokens_sum",), total()),
        "kv_capacity_tokens": SignalSource(("tgi_batch_max_total_tokens",), total()),
    }
)
"""Tokens in use are those reserved for the batch's longest possible output; generated tokens count when a request ends. The gauges appear
with the first request: until then the load of a fresh server is unknown."""

DIALECT: Final = Dialect(
    name="tgi",
    known_from="sources of 3.3.7",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=None,
    signals_path="/metrics",
    read_signals=SIGNALS.read,
    signals_reader=SIGNALS.reader,
    priority=None,
    lora_model="{adapter}",  # loaded at start, from LORA_ADAPTERS
    lora=None,
    errors=frozenset({ErrorShape.TEXT}),
    fields=Fields(
        takes={
            Endpoint.CHAT: frozenset(
                {
                    "frequency_penalty",
                    "logprobs",
                    "max_completion_tokens",
                    "max_tokens",
                    "messages",
                    "response_format",
                    "seed",
                    "stop",
                    "stream",
                    "stream_options",
                    "temperature",
                    "tool_choice",
                    "tool_prompt",
                    "tools",
                    "top_logprobs",
                    "top_p",
                }
            ),
            Endpoint.COMPLETIONS: frozenset(
                {
                    "frequency_penalty",
                    "max_tokens",
                    "prompt",
                    "repetition_penalty",
                    "seed",
                    "stop",
                    "stream",
                    "stream_options",
                    "temperature",
                    "top_p",
                }
            ),
        },
        not_at_default=frozenset({"top_p"}),
        lists=frozenset({"stop"}),
    ),
    drains="finishes requests; the launcher ends it after `--graceful-termination-timeout` seconds, 90 unless set",
    proven=False,
)
