"""Triton Inference Server's OpenAI frontend: documented, never run here.

Read in triton-inference-server/server at e1db8a6 (2.73, 26.09), `python/openai/openai_frontend`: `schemas/openai.py` (unknown
fields are forbidden), `engine/triton_engine.py` (one choice, one prompt, no logit bias; `response_format` and `functions` pass
the schema and are then left out), `routers/` (routes; FastAPI's `detail` errors; SIGTERM is uvicorn's). Metrics come from the
backend behind it: `nv_trt_llm_*` (tensorrtllm_backend's README) or `vllm:*` (vllm_backend, `src/utils/metrics.py` at 1e66a22,
with REPORT_CUSTOM_METRICS). Triton's own `nv_inference_pending_request_count` is no substitute: both backends take requests
at once and queue them inside, so it reads 0 under any load.
"""

from collections.abc import Sequence
from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape
from backends.dialects.fields import Fields
from backends.prometheus_text import PrometheusSample
from backends.signals import SignalSource, SignalTable, mean, total
from domain.ask import Endpoint

_REQUESTS: Final = ("nv_trt_llm_request_metrics",)
_BLOCKS: Final = ("nv_trt_llm_kv_cache_block_metrics",)


def _share(samples: Sequence[PrometheusSample]) -> float | None:
    return mean([sample for sample in samples if sample.labels.get("kv_cache_block_type") == "fraction"])


def _capacity(samples: Sequence[PrometheusSample]) -> int | None:
    blocks = total(kv_cache_block_type="max")(samples)
    size = _block_size(samples)
    return None if blocks is None or size is None else blocks * size


def _block_size(samples: Sequence[PrometheusSample]) -> int | None:
    return next((int(s.value) for s in samples if s.labels.get("kv_cache_block_type") == "tokens_per"), None)


SIGNALS: Final = SignalTable(
    {
        "running": (
            SignalSource(_REQUESTS, total(request_type="scheduled"), required=True),
            SignalSource(("vllm:num_requests_running",), total()),
        ),
        "waiting": (
            SignalSource(_REQUESTS, total(request_type="waiting"), required=True),
            SignalSource(("vllm:num_requests_waiting",), total()),
        ),
        "kv_usage": (
            SignalSource(_BLOCKS, _share, required=True),
            SignalSource(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), mean),
        ),
        "kv_capacity_tokens": SignalSource(_BLOCKS, _capacity),
        "block_size": SignalSource(_BLOCKS, _block_size),
        "generated_tokens": SignalSource(("vllm:generation_tokens_total",), total()),
        "preemptions": SignalSource(("vllm:num_preemptions_total",), total()),
    }
)

_GENERATION: Final = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logprobs",
        "max_tokens",
        "min_tokens",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "user",
    }
)

DIALECT: Final = Dialect(
    name="triton",
    known_from="sources of 2.73 (26.09)",
    health_path="/health/ready",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=None,
    signals_path="/metrics",
    read_signals=SIGNALS.read,
    signals_reader=SIGNALS.reader,
    priority=None,
    lora_model=None,  # names are base, the operator's `--lora-separator`, adapter; listed at start, so a pool's model may be such a name
    lora=None,
    errors=frozenset({ErrorShape.DETAIL}),
    fields=Fields(
        takes={
            Endpoint.CHAT: _GENERATION | {"max_completion_tokens", "messages", "tool_choice", "tools", "top_logprobs"},
            Endpoint.COMPLETIONS: _GENERATION | {"echo", "prompt"},
            Endpoint.EMBEDDINGS: frozenset({"dimensions", "encoding_format", "input", "user"}),
        }
    ),
    drains="uvicorn's: takes no more connections, waits for open requests, then stops the server",
    proven=False,
)
