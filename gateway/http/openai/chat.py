"""`POST /v1/chat/completions`: the fields of a chat beyond those of `generation`, and the size of its prompt."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import Check, each, either, flag, integer, one_of, refuse, refuse_type, schema, set_by, shown, text
from gateway.http.openai.generation import generation
from gateway.http.openai.messages import media_of, messages
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps

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
_encode = msgspec.json.Encoder().encode


def _tool(check_function: Check, check_schema: Check, most_bytes: int) -> Check:
    def check(value: object, param: str) -> None:
        if type(value) is not dict:
            refuse_type("an object", value, param)
        kind = value.get("type")
        if type(kind) is not str:
            refuse_type("a string", kind, f"{param}.type")
        if kind != "function":
            check_schema(value, param)  # other kinds have shapes of their own; size and depth are bounded all the same
            if len(_encode(value)) > most_bytes:
                message = f"Invalid value for '{param}': more than {most_bytes} bytes, which only function tools may have."
                refuse(message + set_by("grammar_chars"), param)
            return
        if "function" not in value:
            raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}.function'.", param=f"{param}.function")
        check_function(value["function"], f"{param}.function")

    return check


def _function(check_schema: Check, check_name: Check) -> Check:
    def check(value: object, param: str) -> None:
        if type(value) is not dict:
            refuse_type("an object", value, param)
        name = value.get("name")
        if type(name) is not str:
            refuse_type("a string", name, f"{param}.name")
        check_name(name, f"{param}.name")
        parameters = value.get("parameters")
        if parameters is not None:
            check_schema(parameters, f"{param}.parameters")

    return check


def _tool_choice(value: object, param: str) -> None:
    if type(value) is not dict:
        refuse_type("a string or an object", value, param)
    if type(value.get("type")) is not str:
        refuse_type("a string", value.get("type"), f"{param}.type")


def _template_kwargs(caps: RequestCaps) -> Check:
    """A check of `chat_template_kwargs`: variables of the model's own template, one scalar each.

    Of CVE-2025-62426 two members are left: `chat_template` brings a program, `tokenize` stalls the engine's event loop. The others of
    `CALL_VARIABLES` are arguments of the call that renders the template.
    """
    most = caps.template_variables
    check_text = text(caps.variable_chars, "variable_chars")

    def check(value: object, param: str) -> None:
        if type(value) is not dict:
            refuse_type("an object", value, param)
        if len(value) > most:
            message = f"Invalid value for '{param}': {len(value)} entries are too many, at most {most} are allowed."
            refuse(message + set_by("template_variables"), param)
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
                check_text(scalar, path)

    return check


def _media_kwargs(most_bytes: int) -> Check:
    """A check of the size of arguments for media processing. Whether a caller may send them is the policy's
    (`parameters.check_closed`)."""

    def check(value: object, param: str) -> None:
        if type(value) is not dict:
            refuse_type("an object", value, param)
        if len(_encode(value)) > most_bytes:
            refuse(f"Invalid value for '{param}': more than {most_bytes} bytes.{set_by('media_kwargs_bytes')}", param)

    return check


def _thinking(check_schema: Check) -> Check:
    """A check of `thinking` in the form of hosted APIs: an object with a type."""

    def check(value: object, param: str) -> None:
        check_schema(value, param)
        _switch_type(value.get("type"), f"{param}.type")  # type: ignore[attr-defined]  # the schema's check has seen that it is a dict

    return check


_switch_type = one_of("enabled", "disabled")


def template_fields(caps: RequestCaps) -> dict[str, Check]:
    """The checks of the fields that a chat template and the processing of media read."""
    media_kwargs = _media_kwargs(caps.media_kwargs_bytes)
    return {
        "chat_template_kwargs": _template_kwargs(caps),
        "mm_processor_kwargs": media_kwargs,
        "media_io_kwargs": media_kwargs,
        "continue_final_message": flag,
        "add_generation_prompt": flag,
    }


def chat(caps: RequestCaps, *, links: bool = False) -> Mapping[str, Check]:
    """The checks under a policy's caps, by field name; `links` as for `messages`."""
    check_schema = schema(caps.schema_bytes, caps.schema_depth)
    function = _function(check_schema, text(caps.name_chars, "name_chars"))
    return {
        **generation(caps),
        **template_fields(caps),
        "enable_thinking": flag,
        "thinking": either(flag, _thinking(check_schema), bool),
        "messages": messages(caps, links=links),
        "max_completion_tokens": integer(0, caps.output_tokens, "output_tokens"),
        "logprobs": flag,
        "top_logprobs": integer(0, caps.logprobs, "logprobs"),
        "tools": each(caps.tools, _tool(function, check_schema, caps.grammar_chars), cap="tools"),
        "tool_choice": either(one_of("none", "auto", "required"), _tool_choice, str),
        "parallel_tool_calls": flag,
        "functions": each(caps.tools, function, cap="tools"),
    }


def chat_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the messages; media in them are counted apart."""
    for message in document["messages"]:  # type: ignore[attr-defined]  # `messages` has seen that it is a list of objects
        if type(message.get("content")) is list:
            media, image_bytes = media_of(document)
            return PromptSize(body_bytes, None, media, image_bytes)
    return PromptSize(body_bytes)
