"""`POST /v1/responses`: the fields of a request to those of a chat.

The items of an earlier Response that the request continues are put in front of its own (`translated`). What needs the vendor's servers is
refused by name, with what to send in its place. A field that is not known here goes on as it is: engines know more fields (`top_k`,
`chat_template_kwargs`). Values are checked where the chat is checked; here only those are that have to be read. A field that is null counts
as absent.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import flag, integer, refuse, refuse_type, shown
from gateway.http.openai.json_guard import parse_body
from gateway.http.responses.items import EARLIER, INSTRUCTIONS, ChatMessages
from gateway.http.responses.tools import CalledTool, ResponseTools

_REFUSED: Final[Mapping[str, str]] = {
    "prompt": "send the prompt's text as 'instructions' and 'input'",
    "context_management": "shorten the conversation yourself",
    "max_tool_calls": "it bounds tools that OpenAI's own servers run, and none do here",
    "moderation": "ask for guard rules with 'guardrails'",
    # the words of a chat for what has another name here
    "messages": "send 'input'",
    "n": "send several requests",
    "max_tokens": "send 'max_output_tokens'",
    "max_completion_tokens": "send 'max_output_tokens'",
    "response_format": "send 'text.format'",
    "reasoning_effort": "send 'reasoning.effort'",
    "verbosity": "send 'text.verbosity'",
    "logprobs": "send 'include' with 'message.output_text.logprobs'",
    "functions": "send 'tools'",
    "function_call": "send 'tool_choice'",
}
"""By field: what to do instead."""

_LOGPROBS: Final = "message.output_text.logprobs"
_SEALED: Final = "reasoning.encrypted_content"
_INCLUDES: Final = frozenset(
    {
        *(_LOGPROBS, _SEALED),
        # the details of calls that no reply has
        *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"),
        *("computer_call_output.output.image_url", "message.input_image.image_url"),
    }
)

_OWN: Final = frozenset(
    {
        *(
            "model",
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "max_output_tokens",
            "text",
            "reasoning",
            "include",
        ),
        *("top_logprobs", "store", "background", "truncation", "stream", "stream_options", "previous_response_id"),
        "conversation",
    }
)
"""The fields that do not go on under their names."""

_ECHOED: Final = (
    *("instructions", "max_output_tokens", "prompt_cache_key", "safety_identifier", "service_tier", "temperature", "top_p"),
    *("parallel_tool_calls", "tool_choice", "top_logprobs", "metadata", "user", "previous_response_id", "background"),
)
_DEFAULTS: Final[Mapping[str, Any]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
}
"""The members of a reply that repeat the request. A null says that the engine decides, as no vendor's default holds for it."""

_RENAMED: Final[Mapping[str, str]] = {
    "max_tokens": "max_output_tokens",  # some checks know a chat's cap by this name alone
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "messages": "input",
    "tools": "tools",
}
"""By field of the chat: where the caller wrote it."""

MOST_TIMES: Final = 2
MORE_BYTES: Final = 64 * 1024
"""A chat has at most `MOST_TIMES` the bytes of its request and `MORE_BYTES`, so that no short request costs as much as a long one. Quotes
in the input of a custom tool's call double, since it becomes JSON in JSON; and 256 custom tools without a description, which is the usual
cap, get 50 KiB of the words that a chat has around them."""

_encode = msgspec.json.Encoder().encode
_count = integer(0, 2**63 - 1)


class ResponseAsk(msgspec.Struct, frozen=True, gc=False):
    """A request, translated."""

    chat: bytes
    """The body of the chat."""
    model: bytes
    """The model's name as a JSON string."""
    echo: bytes
    """The members of a reply that repeat the request, without the braces."""
    called: Mapping[str, CalledTool]
    """The caller's names of the functions."""
    places: tuple[int, ...]
    """By message of the chat: the item of the input that it began with; `items.INSTRUCTIONS` and `items.EARLIER` for what stands before."""
    sealed: bool
    """Whether an item of reasoning gets an `encrypted_content`."""


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of the request that `body` holds, without those that are null.

    Raises:
        Fault: INVALID_JSON; UNSUPPORTED_PARAMETER for a field that nobody serves here, INVALID_VALUE for an id that is no text.
    """
    document, _ = parse_body(body)
    fields = {name: value for name, value in document.items() if value is not None}
    for name in fields:
        if name in _REFUSED:
            _refuse_field(name, _REFUSED[name])
    earlier = fields.get("previous_response_id", "resp")
    if type(earlier) is not str:
        refuse_type("a string", earlier, "previous_response_id")
    if not earlier:
        refuse("Invalid value for 'previous_response_id': it is empty.", "previous_response_id")
    if "conversation" in fields:
        fields["conversation"] = _conversation(fields)
    return fields


def _conversation(fields: Mapping[str, Any]) -> str:
    """The id of the conversation that a request names, by itself or as an object with an `id`."""
    named = fields["conversation"]
    if "previous_response_id" in fields:
        message = "Mutually exclusive parameters: send 'conversation' or 'previous_response_id', and not both."
        raise Fault(Kind.INVALID_VALUE, message, param="conversation", code="mutually_exclusive_parameters")
    if fields.get("background"):
        _refuse_field("conversation", "a Response in the background adds to none; send it with 'previous_response_id'")
    where = "conversation"
    if type(named) is dict:
        named, where = named.get("id"), "conversation.id"
        if named is None:
            raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{where}'.", param=where)
    if type(named) is not str:
        refuse_type("a string" if where == "conversation.id" else "a string or an object", named, where)
    if not named:
        refuse(f"Invalid value for '{where}': it is empty.", where)
    return named


def translated(fields: Mapping[str, Any], size: int, earlier: Iterable[Any] = (), param: str = "previous_response_id") -> ResponseAsk:
    """The request with these fields.

    Args:
        size: the bytes in which it was written, those of the conversation that it continues included.
        earlier: the items of the conversation that it continues.
        param: the parameter that names the conversation.

    Raises:
        Fault: MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field.
    """
    _check_modes(fields)
    background = fields.get("background", False)
    chat: dict[str, Any] = {"model": fields["model"]} if "model" in fields else {}
    echo = dict(_DEFAULTS)
    echo.update({name: fields[name] for name in _ECHOED if name in fields})
    if "conversation" in fields:
        echo["conversation"] = {"id": fields["conversation"]}
    tools = ResponseTools()
    messages = ChatMessages(tools)
    if "instructions" in fields:
        messages.add_instructions(fields["instructions"])
    if "tools" in fields:
        tools.add(fields["tools"], "tools")
    if "input" not in fields:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'input'.", param="input")
    messages.add_earlier(earlier, param)
    messages.add(fields["input"])
    chat["messages"] = messages.messages
    chat.update(_tool_fields(fields, tools))
    echo["tools"] = tools.echo
    for name, translate in _TRANSLATED.items():
        if name in fields:
            translate(fields[name], chat, echo)
    included = check_included(fields.get("include", []))
    if _LOGPROBS in included or fields.get("top_logprobs"):
        chat["logprobs"] = True
        if "top_logprobs" in fields:
            chat["top_logprobs"] = fields["top_logprobs"]
    if "stream" in fields or background:
        chat["stream"] = background or fields["stream"]  # the events of a Response in the background are kept, whoever reads them
        if chat["stream"] is True:
            chat["stream_options"] = {"include_usage": True}
    chat.update({name: value for name, value in fields.items() if name not in _OWN})
    encoded = _encode(chat)
    if len(encoded) > MOST_TIMES * size + MORE_BYTES:
        _refuse_growth(chat, len(encoded))
    return ResponseAsk(
        chat=encoded,
        model=_encode(fields.get("model", "")),
        echo=_encode(echo)[1:-1],
        called=tools.called,
        places=tuple(messages.places),
        sealed=_SEALED in included,
    )


def _refuse_growth(chat: Mapping[str, Any], size: int) -> NoReturn:
    """Refuse a request that would become a much longer chat, by its longest field."""
    longest = max(chat, key=lambda name: len(_encode(chat[name])))
    param = _RENAMED.get(longest, longest)
    bound = f"more than {MOST_TIMES} times the request's own and {MORE_BYTES}"
    refuse(f"Invalid value for '{param}': with it the request would become a chat of {size} bytes, {bound}.", param)


def _check_modes(fields: Mapping[str, Any]) -> None:
    """Check the fields that ask for another kind of request than this one."""
    for name in ("background", "store", *(("stream",) if fields.get("background") else ())):  # else the chat's check sees `stream`
        if name in fields:
            flag(fields[name], name)
    truncation = fields.get("truncation", "disabled")
    if truncation == "auto":
        _refuse_field(
            "truncation", "no message is dropped here; send 'disabled', and shorten the conversation yourself when it is too long"
        )
    if truncation != "disabled":
        refuse("Invalid value for 'truncation': send 'disabled'.", "truncation")
    if type(fields.get("stream_options", {})) is not dict:
        refuse_type("an object", fields["stream_options"], "stream_options")
    if type(fields.get("metadata", {})) is not dict:
        refuse_type("an object", fields["metadata"], "metadata")
    if "top_logprobs" in fields:
        _count(fields["top_logprobs"], "top_logprobs")


def _tool_fields(fields: Mapping[str, Any], tools: ResponseTools) -> dict[str, Any]:
    """The fields of the chat about tools. Without tools there are none: OpenAI and vLLM refuse them then, and callers send them all the
    same."""
    choice = fields.get("tool_choice", "auto")
    if not tools.functions and choice in ("auto", "none"):
        return {}
    chosen = tools.choose(choice, "tool_choice")  # before the list is read: it may shorten it
    found: dict[str, Any] = {"tools": tools.functions} if tools.functions else {}
    if "tool_choice" in fields:
        found["tool_choice"] = chosen
    if "parallel_tool_calls" in fields:
        found["parallel_tool_calls"] = fields["parallel_tool_calls"]
    return found


def check_included(values: object) -> frozenset[str]:
    """The values of `include`. Raises Fault: INVALID_VALUE for one that is not known."""
    if type(values) is not list:
        refuse_type("an array", values, "include")
    for index, value in enumerate(values):
        if type(value) is not str:
            refuse_type("a string", value, f"include[{index}]")
        if value not in _INCLUDES:
            known = ", ".join(sorted(_INCLUDES))
            refuse(f"Invalid value for 'include[{index}]': {shown(value)} is not one of {known}.", f"include[{index}]")
    return frozenset(values)


def _max_output_tokens(value: object, chat: dict[str, Any], _echo: dict[str, Any]) -> None:
    chat["max_completion_tokens"] = value


def _reasoning(value: object, chat: dict[str, Any], echo: dict[str, Any]) -> None:
    if type(value) is not dict:
        refuse_type("an object", value, "reasoning")
    for name, member in value.items():
        if name == "effort":
            if member is not None:
                chat["reasoning_effort"] = member
        elif name in ("summary", "generate_summary"):
            if member not in (None, "auto", "concise", "detailed"):
                refuse(f"Invalid value for 'reasoning.{name}': send 'auto', 'concise' or 'detailed'.", f"reasoning.{name}")
        elif name == "context":
            if member not in (None, "auto", "all_turns"):  # all reasoning of the input goes on, and the engine's template decides
                _refuse_field("reasoning.context", "leave out the items of reasoning that the model is not to see")
        elif member not in (None, "standard"):  # the mode that changes nothing
            _refuse_field(f"reasoning.{shown(name, 16)[1:-1]}", "send 'reasoning.effort'")
    echo["reasoning"] = {"effort": value.get("effort"), "summary": value.get("summary")}


def _text(value: object, chat: dict[str, Any], echo: dict[str, Any]) -> None:
    if type(value) is not dict:
        refuse_type("an object", value, "text")
    for name in value:
        if name not in ("format", "verbosity"):
            _refuse_field(f"text.{shown(name, 16)[1:-1]}", "send 'text.format' or 'text.verbosity'")
    if value.get("verbosity") is not None:
        chat["verbosity"] = value["verbosity"]
    form = value.get("format")
    if form is None:
        echo["text"] = {**value, "format": {"type": "text"}}
        return
    echo["text"] = value
    if type(form) is not dict:
        refuse_type("an object", form, "text.format")
    kind = form.get("type")
    if kind == "json_schema":
        members = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
        for name, expected in (("name", str), ("schema", dict)):
            if type(members.get(name)) is not expected:
                _refuse_member(members.get(name), f"text.format.{name}", "a string" if expected is str else "an object")
        chat["response_format"] = {"type": kind, kind: members}
    elif kind == "json_object":
        chat["response_format"] = {"type": kind}
    elif kind != "text":
        refuse("Invalid value for 'text.format.type': send 'text', 'json_schema' or 'json_object'.", "text.format.type")


def _refuse_member(value: object, param: str, expected: str) -> NoReturn:
    if value is None:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
    refuse_type(expected, value, param)


def _refuse_field(param: str, instead: str) -> NoReturn:
    raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{param}' is not supported: {instead}.", param=param)


_TRANSLATED: Final[Mapping[str, Callable[[object, dict[str, Any], dict[str, Any]], None]]] = {
    "max_output_tokens": _max_output_tokens,
    "reasoning": _reasoning,
    "text": _text,
}


def in_callers_words(fault: Fault, places: tuple[int, ...], earlier: str = "previous_response_id") -> Fault:
    """The Fault of a chat with the path of the field in the caller's request, as far as there is one.

    Args:
        places: those of the request. Empty where messages of the registry come in front of them: the number in a path counts these or does
            not, by what found the fault, so then no item is named.
        earlier: the parameter that names the conversation which the request continues.
    """
    param = fault.param
    if param is None:
        return fault
    head = param.partition(".")[0].partition("[")[0]
    if head not in _RENAMED:
        return fault
    path = _RENAMED[head]
    index = param[len("messages[") :].partition("]")[0] if head == "messages" else ""
    if index.isdigit() and int(index) < len(places):
        place = places[int(index)]
        path = {INSTRUCTIONS: "instructions", EARLIER: earlier}.get(place) or f"input[{place}]"
    message = fault.message.replace(f"'{param}'", f"'{path}'")
    return Fault(fault.kind, message, param=path, retry=fault.retry, detail=fault.detail, alone_s=fault.alone_s, code=fault.code)
