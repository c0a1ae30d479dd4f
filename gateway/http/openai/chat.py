"""`POST /v1/chat/completions`: the fields of a chat beyond those of `generation`, and the size of its prompt."""

from collections.abc import Mapping
from typing import Final

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import Check, each, either, flag, integer, one_of, refuse, refuse_type, schema, text
from gateway.http.openai.generation import GENERATION, MAX_GRAMMAR_CHARS, MAX_LOGPROBS, MAX_OUTPUT_TOKENS
from gateway.http.openai.messages import check_messages, media_of
from gateway.http.openai.sizes import PromptSize

MAX_TOOLS: Final = 256
"""OpenAI allows 128. An engine renders each tool into the prompt and compiles a forced one into a grammar."""

MAX_NAME_CHARS: Final = 256

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


CHAT: Final[Mapping[str, Check]] = {
    **GENERATION,
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
