"""Fields that chats and plain completions share: sampling, limits, structured output, and the fields refused in both.

A field without a check goes to the engine as it is. Each cap bounds a field that makes one small request cost as much as many: `n`
multiplies the decoding, log-probabilities and stop strings cost per token, schemas and grammars are compiled.

`inputs` checks text in one of OpenAI's four shapes: a string, strings, token ids, or arrays of token ids.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from gateway.http.openai.checks import Check, each, either, flag, integer, number, refuse, refuse_type, schema, text, unsupported, weights

MAX_TOKEN_ID: Final = 2**31 - 1
"""Engines keep ids in 32 bits, and refuse an id beyond the vocabulary themselves."""

_Tokens: Final = list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]]


def inputs(most: int) -> Check:
    """A check for one input, or an array of 1 to `most` inputs."""

    def check(value: object, param: str) -> None:
        if type(value) is str:
            return
        if type(value) is not list:
            refuse_type("a string or an array", value, param)
        if not value:
            refuse(f"Invalid value for '{param}': it is empty.", param)
        if type(value[0]) is int:
            _check_tokens(value, param)
            return
        if len(value) > most:
            refuse(f"Invalid value for '{param}': {len(value)} items are too many, at most {most} are allowed.", param)
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
                _check_tokens(item, item_param)

    return check


def _check_tokens(values: list[object], param: str) -> None:
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


MAX_CHOICES: Final = 16
"""Largest `n` and `best_of`. vLLM allows 16,384 by default, OpenAI 128; every answer holds KV memory of its own."""

MAX_OUTPUT_TOKENS: Final = 1_000_000
"""Above any model's context; the engine knows its own limit."""

MAX_LOGPROBS: Final = 20
"""OpenAI's cap and vLLM's default one. vLLM reads -1 as the whole vocabulary, so negatives are refused."""

MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 1024
"""Engines search stop strings after every token. OpenAI allows 4 of them."""

MAX_GRAMMAR_CHARS: Final = 8 * 1024
"""Longest regular expression or grammar given as text: engines compile it on their event loop or a small pool."""

MAX_BIASES: Final = 1024
"""Most entries of `logit_bias`, which is OpenAI's cap; engines apply them on the GPU for each token."""

MAX_USER_CHARS: Final = 512

MAX_TOP_K: Final = 1_000_000
"""Above any vocabulary; -1 and 0 mean no bound to the engines that take them."""

_token_id = integer(0, 2**31 - 1)
_token_ids = each(1024, _token_id)
_tokens = integer(0, MAX_OUTPUT_TOKENS)
_penalty = number(-2.0, 2.0)
_grammar = text(MAX_GRAMMAR_CHARS)
_stop = text(MAX_STOP_CHARS)
_JSON_SCHEMA: Final = either(text(MAX_GRAMMAR_CHARS), schema, str)

_STRUCTURES: Final[Mapping[str, Check]] = {
    "regex": _grammar,
    "grammar": _grammar,
    "json": _JSON_SCHEMA,
    "choice": each(1024, text(MAX_STOP_CHARS), least=1),
    "whitespace_pattern": _grammar,
    "structural_tag": _JSON_SCHEMA,
}


def _check_stop(value: object, param: str) -> None:
    _stop(value, param)
    if value == "":
        refuse(f"Invalid value for '{param}': a stop string must have at least one character.", param)


def _structured(value: object, param: str) -> None:
    schema(value, param)
    for key, inner in value.items():  # type: ignore[attr-defined]  # schema() has checked that it is a dict
        check = _STRUCTURES.get(key)
        if check is not None and inner is not None:
            check(inner, f"{param}.{key}")


def _response_format(value: object, param: str) -> None:
    schema(value, param)
    kind = value.get("type")  # type: ignore[attr-defined]  # schema() has checked that it is a dict
    if type(kind) is not str:
        refuse_type("a string", kind, f"{param}.type")
    if kind == "json_schema" and type(inner := value.get("json_schema")) is not dict:  # type: ignore[attr-defined]  # schema() has checked that it is a dict
        refuse_type("an object", inner, f"{param}.json_schema")


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

GENERATION: Final[Mapping[str, Check]] = {
    **REFUSED,
    "stream": flag,
    "n": integer(1, MAX_CHOICES),
    "best_of": integer(1, MAX_CHOICES),
    "max_tokens": _tokens,
    "min_tokens": integer(0, MAX_OUTPUT_TOKENS),
    "temperature": number(0.0, 2.0),
    "top_p": number(0.0, 1.0, low_open=True),
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "repetition_penalty": number(0.0, 10.0, low_open=True),
    "top_k": integer(-1, MAX_TOP_K),
    "min_p": number(0.0, 1.0),
    "allowed_token_ids": _token_ids,
    "logprob_token_ids": each(MAX_LOGPROBS, _token_id),
    "samplers": either(text(MAX_STOP_CHARS), each(32, text(64)), str),
    "dry_sequence_breakers": each(32, text(64)),
    "documents": each(256, schema),
    "prompt_logprobs": integer(0, MAX_LOGPROBS),
    "stop": either(_check_stop, each(MAX_STOPS, _check_stop), str),
    "stop_token_ids": each(1024, _token_id),
    "bad_words": each(256, text(MAX_STOP_CHARS)),
    "seed": integer(-(2**63), 2**63 - 1),
    "user": text(MAX_USER_CHARS),
    "logit_bias": weights(MAX_BIASES, -100.0, 100.0),
    "echo": flag,
    "response_format": _response_format,
    "structured_outputs": _structured,
    "structural_tag": _JSON_SCHEMA,
    "json_schema": _JSON_SCHEMA,
    "guided_json": _JSON_SCHEMA,
    "guided_regex": _grammar,
    "guided_grammar": _grammar,
    "guided_choice": _STRUCTURES["choice"],
    "guided_whitespace_pattern": _grammar,
    "regex": _grammar,
    "ebnf": _grammar,
    "grammar": _grammar,
}
"""Checks by field name. `guided_*` are vLLM's older names, `regex` and `ebnf` SGLang's, `grammar` and `json_schema`
llama.cpp's."""
