"""llama.cpp's server: answers 200 to an unknown model, 500 to broken JSON, and has no cache salt."""

import re
from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape
from backends.dialects.errors import CallerMistake
from backends.dialects.fields import VLLM_ALONE, Fields
from backends.dialects.structure import LLAMACPP
from backends.dialects.thinking import ThinkingFields
from backends.signals import SignalSource, SignalTable, first, total
from domain.ask import Endpoint

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

MISTAKES: Final = (
    CallerMistake(
        re.compile(r"^(?:image|audio|video) input is not supported"),
        "",
        "This model does not take images, audio or video. Send text, or ask for a model that takes this kind of content.",
    ),
    CallerMistake(re.compile(r"^Failed to parse messages: "), ""),
    CallerMistake(re.compile(r"^Failed to parse tools: "), "tools"),
    CallerMistake(re.compile(r"^tools? param requires"), "tools", "This model is not set up for tool calls."),
    CallerMistake(re.compile(r"^tool_choice param requires"), "tool_choice", "This model is not set up for tool calls."),
    CallerMistake(re.compile(r"^Unknown reasoning format: "), "reasoning_format"),
    CallerMistake(re.compile(r"^Cannot use both json_schema and grammar|^Either \"json_schema\" or \"grammar\""), "response_format"),
    CallerMistake(re.compile(r"roles must alternate|^Jinja Exception|raise_exception"), ""),
    CallerMistake(re.compile(r"^Failed to load image or audio file"), ""),
)
"""The first five as a server of 2026 sends them; the others are its texts in releases that answered every exception with 500."""

DIALECT: Final = Dialect(
    name="llamacpp",
    known_from="llama-server of 2026, run",
    health_path="/health",
    models_path="/v1/models",
    answers_as_listed=True,
    isolation=None,
    signals_path="/metrics",
    read_signals=SIGNALS.read,
    signals_reader=SIGNALS.reader,
    priority=None,
    lora_model=None,  # requests name adapters by the server's numbers, in the field `lora`
    lora=None,
    errors=frozenset({ErrorShape.OBJECT}),
    fields=Fields(
        refuses={**VLLM_ALONE, "echo": "", "return_token_strs": "send 'with_pieces'"},
        structure=LLAMACPP,
        thinking=ThinkingFields(from_effort=True),
    ),
    drains="cuts answers in flight",
    mistakes=MISTAKES,
    usage_of_each_choice=True,
    continues={},
    proven=True,
    routes=dict.fromkeys(
        (Endpoint.SCORE, Endpoint.CLASSIFY, Endpoint.POOLING, Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS, Endpoint.SPEECH)
    ),
    tokenizes=("content",),
)
