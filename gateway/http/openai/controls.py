"""Request fields that steer an engine or the fleet rather than the answer. Callers may not set them.

They are stripped without an error: clients written for one engine send some of them by habit, and without the field the request still
means the same. Only the top level is searched, because engines read these fields only there; `stream_options` is rewritten as a whole.
A field that changes the answer or makes an engine run a caller's code is refused instead (`generation.REFUSED`).
"""

from collections.abc import Mapping
from typing import Final

CONTROLS: Final = frozenset(
    {
        # isolation between tenants: the gateway sets its own salt, so that no cache timing tells one tenant what another sent
        "cache_salt",
        "extra_key",  # SGLang's second salt
        # scheduling: a caller that sets its own priority passes every other tenant's queue
        "priority",
        "scheduling_params",  # TensorRT-LLM
        "agent_hierarchy",  # TensorRT-LLM
        # disaggregated prefill: names hosts and memory of the fleet; a caller's values make an engine connect to them
        "kv_transfer_params",
        "ec_transfer_params",
        "disaggregated_params",  # TensorRT-LLM
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "disagg_prefill_dp_rank",
        # placement: the router chooses the rank and the slot
        "routed_dp_rank",
        "data_parallel_rank",
        "data_parallel_rank_decode",
        "dp_rank",
        "id_slot",  # llama.cpp: answers from a slot that may hold another tenant's prefix
        "slot_id",
        "nvext",  # Dynamo: instance ids and annotations
        # identity: with an id of its own choice a caller can abort or collide with another's request
        "rid",
        "request_id",
        "conversation_id",
        "conversation_params",  # TensorRT-LLM: routing by conversation
        "session_id",
        "session_params",
        # adapters by path or by server-side number; a policy maps model names to adapters
        "lora_path",
        "lora_name",
        "lora_request",
        "lora",
        "adapter_id",
        # server internals
        "vllm_xargs",  # free-form arguments for plug-ins inside the engine
        "custom_labels",  # SGLang: the caller's words as metric labels, one series each
        "n_cache_reuse",  # llama.cpp
        "ngram_corpus_id",  # SGLang: a text kept in the server, by its number
        "return_hidden_states",  # activations, megabytes per answer
        "return_routed_experts",
    }
)


FAMILIES: Final = ("bootstrap_", "disagg_")
"""Prefixes of names that are controls, whatever follows: engines add to them with every release."""


def without_controls(document: Mapping[str, object]) -> dict[str, object]:
    """`document` without its controls."""
    return {name: value for name, value in document.items() if name not in CONTROLS and not name.startswith(FAMILIES)}


SESSIONS: Final = ("session_id", "conversation_id", "prompt_cache_key")
"""Fields in which callers name the conversation of a request, the most specific first. Only the last one goes on to engines: it is
OpenAI's own, and groups requests that have a long beginning in common."""

MAX_SESSION_CHARS: Final = 256


def session_named(document: Mapping[str, object]) -> str:
    """The caller's name of the conversation; empty where there is none of at most `MAX_SESSION_CHARS`."""
    for name in SESSIONS:
        value = document.get(name)
        if type(value) is str and 0 < len(value) <= MAX_SESSION_CHARS:
            return value
    return ""
