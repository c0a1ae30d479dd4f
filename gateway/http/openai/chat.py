"""`POST /v1/chat/completions`: the fields of a chat beyond those of `generation`, and the size of its prompt."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import Check, each, either, flag, integer, one_of, refuse, refuse_type, schema, shown, text
from gateway.http.openai.generation import GENERATION, MAX_GRAMMAR_CHARS, MAX_LOGPROBS, MAX_OUTPUT_TOKENS
from gateway.http.openai.messages import check_messages, media_of
from gateway.http.openai.sizes import PromptSize

MAX_TOOLS: Final = 256
"""OpenAI allows 128. An engine renders each tool into the prompt and compiles a forced one into a grammar."""

MAX_NAME_CHARS: Final = 256

MAX_TEMPLATE_VARIABLES: Final = 16
"""Templates read a handful of variables of their own."""

MAX_VARIABLE_CHARS: Final = 1024

MAX_MEDIA_KWARGS_BYTES: Final = 4096
"""Media processors take a dozen numbers."""

CALL_VARIABLES: Final = frozenset(
    {
        *("chat_template", "tokenize", "conversation", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
        *("raise_exception", "strftime_now"),
    }
)
"""The arguments of transformers' `apply_chat_template`, and what every template gets. vLLM hands a caller's members on to that call; with
`max_length` and `padding` it would make a prompt of any size."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_variable_text = text(MAX_VARIABLE_CHARS)
_name = text(MAX_NAME_CHARS)
_encode = msgspec.json.Encoder().encode


def _tool(value: object, param: str) -> None:
    if type(value) is not dict:
        refuse_type("an object", value, param)
    kind = value.get("type")
    if type(kind) is not str:
        refuse_type("a string", kind, f"{param}.type")
    if kind != "function":
        schema(value, param)  # other kinds have shapes of their own; size and depth are bounded all the same
        if len(_encode(value)) > MAX_GRAMMAR_CHARS:
            refuse(f"Invalid value for '{param}': more than {MAX_GRAMMAR_CHARS} bytes, which only function tools may have.", param)
        return
    if "function" not in value:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}.function'.", param=f"{param}.function")
    _function(value["function"], f"{param}.function")


def _function(value: object, param: str) -> None:
    if type(value) is not dict:
        refuse_type("an object", value, param)
    name = value.get("name")
    if type(name) is not str:
        refuse_type("a string", name, f"{param}.name")
    _name(name, f"{param}.name")
    parameters = value.get("parameters")
    if parameters is not None:
        schema(parameters, f"{param}.parameters")


def _tool_choice(value: object, param: str) -> None:
    if type(value) is not dict:
        refuse_type("a string or an object", value, param)
    if type(value.get("type")) is not str:
        refuse_type("a string", value.get("type"), f"{param}.type")


def _template_kwargs(value: object, param: str) -> None:
    """Check `chat_template_kwargs`: variables of the model's own template, one scalar each.

    Of CVE-2025-62426 two members are left: `chat_template` brings a program, `tokenize` stalls the engine's event loop. The others of
    `CALL_VARIABLES` are arguments of the call that renders the template.
    """
    if type(value) is not dict:
        refuse_type("an object", value, param)
    if len(value) > MAX_TEMPLATE_VARIABLES:
        message = f"Invalid value for '{param}': {len(value)} entries are too many, at most {MAX_TEMPLATE_VARIABLES} are allowed."
        refuse(message, param)
    for name, scalar in value.items():
        if _VARIABLE.fullmatch(name) is None:
            refuse(f"Invalid value for '{param}': {shown(name, 16)} is no name of a variable.", param)
        path = f"{param}.{name}"
        if name in CALL_VARIABLES:
            message = f"The parameter '{path}' is not supported: the template and its call are set by the operator of the engine."
            raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=path)
        if type(scalar) is dict or type(scalar) is list:
            refuse_type("a text, number or boolean", scalar, path)
        if type(scalar) is str:
            _variable_text(scalar, path)


def _media_kwargs(value: object, param: str) -> None:
    """Check the size of arguments for media processing. Whether a caller may send them is the policy's (`parameters.check_closed`)."""
    if type(value) is not dict:
        refuse_type("an object", value, param)
    if len(_encode(value)) > MAX_MEDIA_KWARGS_BYTES:
        refuse(f"Invalid value for '{param}': more than {MAX_MEDIA_KWARGS_BYTES} bytes.", param)


def _thinking(value: object, param: str) -> None:
    """Check `thinking` in the form of hosted APIs: an object with a type."""
    schema(value, param)
    _switch_type(value.get("type"), f"{param}.type")  # type: ignore[attr-defined]  # schema() has checked that it is a dict


_switch_type = one_of("enabled", "disabled")

CHAT: Final[Mapping[str, Check]] = {
    **GENERATION,
    "chat_template_kwargs": _template_kwargs,
    "mm_processor_kwargs": _media_kwargs,
    "media_io_kwargs": _media_kwargs,
    "enable_thinking": flag,
    "thinking": either(flag, _thinking, bool),
    "messages": check_messages,
    "max_completion_tokens": integer(0, MAX_OUTPUT_TOKENS),
    "logprobs": flag,
    "top_logprobs": integer(0, MAX_LOGPROBS),
    "tools": each(MAX_TOOLS, _tool),
    "tool_choice": either(one_of("none", "auto", "required"), _tool_choice, str),
    "parallel_tool_calls": flag,
    "functions": each(MAX_TOOLS, _function),
    "continue_final_message": flag,
    "add_generation_prompt": flag,
}


def chat_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the messages; media in them are counted apart."""
    for message in document["messages"]:  # type: ignore[attr-defined]  # check_messages has seen that it is a list of objects
        if type(message.get("content")) is list:
            media, image_bytes = media_of(document)
            return PromptSize(body_bytes, None, media, image_bytes)
    return PromptSize(body_bytes)
