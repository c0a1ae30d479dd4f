"""Request fields that steer an engine or the fleet. Callers may not set them.

Those of `CONTROLS` are stripped without an error: clients written for one engine send some of them by habit, and without the field the
answer is the same. Those of `CHANGE_ANSWER` are refused, because the answer to a request without the field is another one; their own
defaults are stripped. Only the top level is searched, because engines read these fields only there; `stream_options` is rewritten as a
whole. A field that makes an engine run a caller's code is refused too (`generation.REFUSED`).
"""

from collections.abc import Mapping
from typing import Final

from domain.faults import Fault, Kind

CONTROLS: Final = frozenset(
    {
        # the answer cache's controls, in the form of LiteLLM's clients (`Ask.cache`)
        "cache",
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
        "nvext",  # Dynamo: instance ids and annotations; what changes the answer is refused (`NVEXT_INSTEAD`)
        # identity: with an id of its own choice a caller can abort or collide with another's request
        "rid",
        "request_id",
        "conversation_id",
        "conversation_params",  # TensorRT-LLM: routing by conversation
        "session_id",
        # server internals
        "custom_labels",  # SGLang: the caller's words as metric labels, one series each
        "n_cache_reuse",  # llama.cpp
        "ngram_corpus_id",  # SGLang: a text kept in the server, by its number
    }
)

_ADAPTER: Final = "send the adapter's name as 'model'. GET /v1/models lists the models that you may use"
_INTERNAL: Final = "it is for plug-ins and tensors inside the engine. Leave it out"

CHANGE_ANSWER: Final[Mapping[str, str]] = {
    # adapters by path or by the server's number; a policy maps model names to adapters
    "lora_path": _ADAPTER,
    "lora_name": _ADAPTER,
    "lora_request": _ADAPTER,
    "lora": _ADAPTER,
    "adapter_id": _ADAPTER,
    # SGLang: a conversation that is kept in one engine, and might be another tenant's
    "session_params": "send the whole conversation with each request",
    # vLLM: free-form arguments for plug-ins inside the engine
    "vllm_xargs": _INTERNAL,
    # activations and choices of experts, megabytes per answer
    "return_hidden_states": _INTERNAL,
    "return_routed_experts": _INTERNAL,
}
"""Fields without which the answer is another one, each with the advice for the caller."""

_TOP: Final = "send {!r} at the top level"
_GUIDED: Final = "send 'response_format', or 'structured_outputs', at the top level"

NVEXT: Final = "nvext"
NVEXT_CONTROLS: Final = frozenset(
    {
        "agent_hints",
        "annotations",
        "backend_instance_id",
        "cache_control",
        "decode_worker_id",
        "enable_local_updates",
        "expected_output_tokens",
        "extra_fields",
        "prefill_worker_id",
        "request_timestamp_ms",
        "routing",
        "session_control",
        "worker_id",
    }
)
"""Members of Dynamo's `nvext` that place or order a request, or ask for remarks on it: stripped like `CONTROLS`."""
NVEXT_INSTEAD: Final[Mapping[str, str]] = {
    **{name: _TOP.format(name) for name in ("ignore_eos", "top_k", "min_p", "repetition_penalty")},
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern"), _GUIDED),
    "greed_sampling": "send 'temperature': 0 at the top level",
    "use_raw_prompt": "send the text to /v1/completions",
    "token_data": "send the token ids as 'prompt' to /v1/completions",
}
"""Members of `nvext` that change the answer and are fields of the request itself here; any other member is refused too."""

REMOVED: Final = CONTROLS | CHANGE_ANSWER.keys()
"""Every field that no engine gets from a caller."""

FAMILIES: Final = ("bootstrap_", "disagg_")
"""Prefixes of names that are controls, whatever follows: engines add to them with every release."""


def without_controls(document: Mapping[str, object]) -> dict[str, object]:
    """`document` without its controls.

    Raises:
        Fault: UNSUPPORTED_PARAMETER with the name of a field that changes the answer.
    """
    for name, advice in CHANGE_ANSWER.items():
        value = document.get(name)
        if value is not None and value is not False and value not in ("", [], {}):
            raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{name}' is not supported: {advice}.", param=name)
    if NVEXT in document:
        _check_nvext(document[NVEXT])
    return {name: value for name, value in document.items() if name not in REMOVED and not name.startswith(FAMILIES)}


def _check_nvext(value: object) -> None:
    """Refuse the members of Dynamo's extension that change the answer; the rest is stripped with it."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for '{NVEXT}': it must be an object.", param=NVEXT)
    for member, inner in value.items():
        if member not in NVEXT_CONTROLS and inner is not None and inner is not False and inner not in ("", [], {}):
            path = f"{NVEXT}.{member}" if member.isascii() and member.isidentifier() and len(member) <= 64 else NVEXT
            advice = NVEXT_INSTEAD.get(member, "it is for the engine's own use. Leave it out")
            raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{path}' is not supported: {advice}.", param=path)


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


GUARDS: Final = "guardrails"
"""The member by which clients of LiteLLM name guard rules: a list of names at the top level, or inside `metadata`."""

MAX_GUARDS: Final = 100
"""Rules that one request may name; as many as one level of a policy may have."""


def guards_taken(document: dict[str, object]) -> tuple[str, ...]:
    """The guard rules that a body asks for; takes the members that name them off. Engines would not know them.

    Raises:
        Fault: INVALID_VALUE where a member is no list of names.
    """
    named = document.pop(GUARDS, None)
    names = guard_names(named, GUARDS)
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and GUARDS in metadata:
        names += guard_names(metadata.pop(GUARDS), f"metadata.{GUARDS}")
        if not metadata:
            del document["metadata"]
    return names


def guard_names(value: object, param: str) -> tuple[str, ...]:
    """The names of rules in a list; none for null. Raises Fault."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for '{param}': it is a list of names of guard rules.", param=param)
    if len(value) > MAX_GUARDS:
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for '{param}': more than {MAX_GUARDS} names.", param=param)
    return tuple(value)
