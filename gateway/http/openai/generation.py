"""Fields that chats and plain completions share: sampling, limits, structured output, and the fields refused in both.

A field without a check goes to the engine as it is. The caps are the policy's (`policies.caps`); each bounds a field that makes one small
request cost as much as many: `n` multiplies the decoding, log-probabilities and stop strings cost per token, schemas and grammars are
compiled.

`inputs` checks text in one of OpenAI's four shapes: a string, strings, token ids, or arrays of token ids.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from gateway.http.openai.checks import (
    Check,
    each,
    either,
    flag,
    integer,
    number,
    refuse,
    refuse_type,
    schema,
    set_by,
    text,
    unsupported,
    weights,
)
from policies.caps import RequestCaps

MAX_TOKEN_ID: Final = 2**31 - 1
"""Engines keep ids in 32 bits, and refuse an id beyond the vocabulary themselves."""

_Tokens: Final = list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]]


def inputs(most: int, cap: str) -> Check:
    """A check for one input, or an array of 1 to `most` inputs."""

    def check(value: object, param: str) -> None:
        if type(value) is str:
            return
        if type(value) is not list:
            refuse_type("a string or an array", value, param)
        if not value:
            refuse(f"Invalid value for '{param}': it is empty.", param)
        if type(value[0]) is int:
            check_token_ids(value, param)
            return
        if len(value) > most:
            refuse(f"Invalid value for '{param}': {len(value)} items are too many, at most {most} are allowed.{set_by(cap)}", param)
        item_type = type(value[0])
        if item_type is not str and item_type is not list:
            refuse_type("a string or an array of token ids", value[0], f"{param}[0]")
        for index, item in enumerate(value):
            item_param = f"{param}[{index}]"
            if type(item) is not item_type:
                refuse_type("a string" if item_type is str else "an array of token ids", item, item_param)
            if type(item) is list:
                if not item:
                    refuse(f"Invalid value for '{item_param}': it is empty.", item_param)
                check_token_ids(item, item_param)

    return check


def check_token_ids(values: list[object], param: str) -> None:
    """Check that all values are token ids. Raises Fault: INVALID_VALUE with the path of the first that is none."""
    try:
        msgspec.convert(values, _Tokens)
    except msgspec.ValidationError:
        for index, token in enumerate(values):  # find the token that the message names
            if type(token) is not int:
                refuse_type("a token id", token, f"{param}[{index}]")
            if not 0 <= token <= MAX_TOKEN_ID:
                refuse(f"Invalid value for '{param}[{index}]': {token} is not between 0 and {MAX_TOKEN_ID}.", f"{param}[{index}]")


def list_inputs(value: object) -> list[object]:
    """The inputs that a checked value holds, each a text or token ids."""
    return value if type(value) is list and type(value[0]) is not int else [value]


def count_token_ids(value: object) -> int | None:
    """The number of token ids that a checked value holds; None for text."""
    if type(value) is not list:
        return None
    if type(value[0]) is int:
        return len(value)
    return sum(map(len, value)) if type(value[0]) is list else None


_token_id = integer(0, MAX_TOKEN_ID)
_penalty = number(-2.0, 2.0)


def _stops(caps: RequestCaps) -> Check:
    check_text = text(caps.stop_chars, "stop_chars")

    def check(value: object, param: str) -> None:
        check_text(value, param)
        if value == "":
            refuse(f"Invalid value for '{param}': a stop string must have at least one character.", param)

    return either(check, each(caps.stops, check, cap="stops"), str)


def _structured(check_schema: Check, structures: Mapping[str, Check]) -> Check:
    def check(value: object, param: str) -> None:
        check_schema(value, param)
        for key, inner in value.items():  # type: ignore[attr-defined]  # the schema's check has seen that it is a dict
            check_inner = structures.get(key)
            if check_inner is not None and inner is not None:
                check_inner(inner, f"{param}.{key}")

    return check


def _response_format(check_schema: Check) -> Check:
    def check(value: object, param: str) -> None:
        check_schema(value, param)
        kind = value.get("type")  # type: ignore[attr-defined]  # the schema's check has seen that it is a dict
        if type(kind) is not str:
            refuse_type("a string", kind, f"{param}.type")
        if kind == "json_schema" and type(inner := value.get("json_schema")) is not dict:  # type: ignore[attr-defined]  # as above
            refuse_type("an object", inner, f"{param}.json_schema")

    return check


_TEMPLATE: Final = unsupported("templates are set by the operator of the engine")
_PROCESSOR: Final = unsupported("only chats have media")
_CODE: Final = unsupported("callers cannot bring code")

REFUSED: Final[Mapping[str, Check]] = {
    # a template is a program that the engine runs (CVE-2025-61620: one that never ends stalls the server)
    "chat_template": _TEMPLATE,
    "chat_template_kwargs": unsupported("only chats have a template"),
    "mm_processor_kwargs": _PROCESSOR,
    "media_io_kwargs": _PROCESSOR,
    # serialised or imported Python
    "custom_logit_processor": _CODE,
    "custom_params": _CODE,
    "logits_processors": _CODE,
    # tensors, deserialised by the engine (CVE-2025-62164: memory corruption by sparse tensors)
    "prompt_embeds": unsupported("prompts are text or token ids"),
    # second names of fields whose bounds are kept here: through them one small request could cost as much as many
    "n_cmpl": unsupported("send 'n'"),
    "n_predict": unsupported("send 'max_tokens'"),
    "max_new_tokens": unsupported("send 'max_tokens'"),
    "n_probs": unsupported("send 'logprobs'"),
    "top_logprobs_num": unsupported("send 'top_logprobs'"),
    "input_ids": unsupported("send the token ids as 'prompt'"),
    "input_embeds": unsupported("prompts are text or token ids"),
    # searched after every token by a backtracking matcher in the engine
    "stop_regex": unsupported("send 'stop'"),
    "grammar_triggers": unsupported("send 'response_format'"),
    "use_beam_search": unsupported("beam search multiplies the work of one request"),
}


def generation(caps: RequestCaps) -> dict[str, Check]:
    """The checks under a policy's caps, by field name. `guided_*` are vLLM's older names, `regex` and `ebnf` SGLang's, `grammar` and
    `json_schema` llama.cpp's."""
    choices = integer(1, caps.choices, "choices")
    token_ids = each(caps.token_ids, _token_id, cap="token_ids")
    grammar = text(caps.grammar_chars, "grammar_chars")
    samplers = each(caps.samplers, text(caps.sampler_chars, "sampler_chars"), cap="samplers")
    check_schema = schema(caps.schema_bytes, caps.schema_depth)
    json_schema = either(grammar, check_schema, str)
    choice = each(caps.structured_choices, text(caps.stop_chars, "stop_chars"), least=1, cap="structured_choices")
    structures = {
        "regex": grammar,
        "grammar": grammar,
        "json": json_schema,
        "choice": choice,
        "whitespace_pattern": grammar,
        "structural_tag": json_schema,
    }
    return {
        **REFUSED,
        "stream": flag,
        "n": choices,
        "best_of": choices,
        "max_tokens": integer(0, caps.output_tokens, "output_tokens"),
        "min_tokens": integer(0, caps.output_tokens, "output_tokens"),
        "temperature": number(0.0, caps.temperature, cap="temperature"),
        "top_p": number(0.0, 1.0, low_open=True),
        "presence_penalty": _penalty,
        "frequency_penalty": _penalty,
        "repetition_penalty": number(0.0, caps.repetition_penalty, low_open=True, cap="repetition_penalty"),
        "top_k": integer(-1, caps.top_k, "top_k"),
        "min_p": number(0.0, 1.0),
        "allowed_token_ids": token_ids,
        "logprob_token_ids": each(caps.logprobs, _token_id, cap="logprobs"),
        "samplers": either(text(caps.sampler_order_chars, "sampler_order_chars"), samplers, str),
        "dry_sequence_breakers": samplers,
        "documents": each(caps.documents, check_schema, cap="documents"),
        "prompt_logprobs": integer(0, caps.logprobs, "logprobs"),
        "stop": _stops(caps),
        "stop_token_ids": token_ids,
        "bad_words": each(caps.bad_words, text(caps.stop_chars, "stop_chars"), cap="bad_words"),
        "seed": integer(-(2**63), 2**63 - 1),
        "user": text(caps.user_chars, "user_chars"),
        "logit_bias": weights(caps.biases, -100.0, 100.0, "biases"),
        "echo": flag,
        "response_format": _response_format(check_schema),
        "structured_outputs": _structured(check_schema, structures),
        "structural_tag": json_schema,
        "json_schema": json_schema,
        "guided_json": json_schema,
        "guided_regex": grammar,
        "guided_grammar": grammar,
        "guided_choice": choice,
        "guided_whitespace_pattern": grammar,
        "regex": grammar,
        "ebnf": grammar,
        "grammar": grammar,
    }
