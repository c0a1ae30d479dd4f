"""llama.cpp's server: answers 200 to an unknown model, 500 to broken JSON, and has no cache salt."""

from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape
from backends.dialects.fields import VLLM_ALONE, Fields
from backends.dialects.structure import LLAMACPP
from backends.dialects.thinking import ThinkingFields
from backends.signals import SignalSource, SignalTable, first, total

SIGNALS: Final = SignalTable(
    {
        "running": SignalSource(("llamacpp:requests_processing",), total(), required=True),
        "waiting": SignalSource(("llamacpp:requests_deferred",), total(), required=True),
        "kv_usage": SignalSource(("llamacpp:kv_cache_usage_ratio",), first),
        "prefix_hits": SignalSource(("llamacpp:prompt_tokens_cached_total",), total()),
        "prefill_tokens": SignalSource(("llamacpp:prompt_tokens_total",), total()),
        "generated_tokens": SignalSource(("llamacpp:tokens_predicted_total",), total()),
        "prefill_busy_s": SignalSource(("llamacpp:prompt_seconds_total",), first),
    }
)
"""With `--metrics`; the share of KV in use was reported by releases before 2025 only."""

DIALECT: Final = Dialect(
    name="llamacpp",
    known_from="llama-server of 2026, run",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=None,
    signals_path="/metrics",
    read_signals=SIGNALS.read,
    priority=None,
    lora_model=None,  # requests name adapters by the server's numbers, in the field `lora`
    lora=None,
    errors=frozenset({ErrorShape.OBJECT}),
    fields=Fields(refuses={**VLLM_ALONE, "echo": ""}, structure=LLAMACPP, thinking=ThinkingFields(from_effort=True)),
    drains="cuts answers in flight",
    proven=True,
)
