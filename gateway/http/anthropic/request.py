"""The body of `POST /v1/messages` and `POST /v1/messages/count_tokens` as that of a chat.

Fields that the API does not have go on as they are: engines know more of them (`top_k` of the API itself, `min_p`,
`chat_template_kwargs`), and the gateway's own (`guardrails`, `cache`) are read behind this.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from domain.faults import Fault, Kind
from gateway.http.anthropic.blocks import chat_messages
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.openai.checks import refuse, refuse_type, shown
from gateway.http.openai.json_guard import parse_object

EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""`output_config.effort` to `reasoning_effort`, whose highest word all engines know is `high`."""

THINKING: Final = {"enabled": True, "between_tools": True, "disabled": False, "adaptive": None}
"""Whether a kind of `thinking` asks for it; None leaves it to the model."""

DROPPED: Final = frozenset(
    {
        *("cache_control", "context_management", "diagnostics", "inference_geo", "betas", "workspace_id", "user_profile_id"),
        *("service_tier", "output_format", "system", "stop_sequences", "metadata", "thinking", "output_config", "tool_choice", "tools"),
        *("container", "mcp_servers", "speed", "stream", "messages", "model"),
    }
)
"""Fields that are translated, or say only how the vendor's own service treats the request. `cache_control` marks prefixes, and engines find
those by themselves; of `context_management` nothing is applied, and the reply says so."""

CHATS: Final = frozenset(
    {
        *("n", "best_of", "echo", "logprobs", "top_logprobs", "prompt_logprobs", "functions", "function_call", "prompt", "input"),
        *("max_completion_tokens", "response_format", "reasoning_effort", "stop", "user", "session_id", "stream_options", "tool_calls"),
        *("parallel_tool_calls", "enable_thinking", "continue_final_message", "add_generation_prompt"),
    }
)
"""Fields of chats that a Message has another word for, or no place for what they ask for."""

NAMES: Final = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "user": "metadata.user_id",
    "continue_final_message": "messages",
    "add_generation_prompt": "messages",
}
"""Fields of the chat and the fields that they were made of."""

_MESSAGE: Final = re.compile(r"messages\[(\d+)\]")
_SESSION: Final = re.compile(r"(?P<user>.*?)_?session_(?P<session>[0-9A-Za-z-]{8,64})\Z", re.DOTALL)
"""What Claude Code writes as `metadata.user_id`: a user, an account and a session in one name."""
_SESSION_KEYS: Final = ("session_id", "sessionId")

_encode = msgspec.json.Encoder().encode


class MessagesRequest(msgspec.Struct, frozen=True, gc=False):
    """A translated request, and what of it the reply has to know."""

    chat: bytes
    stream: bool = False
    places: tuple[str, ...] = ()
    """The path of the field that each message of the chat was, or began with."""
    manages_context: bool = False
    """Whether the request asks for context management, of which the reply then says that nothing was applied."""


def chat_of(body: bytes, signer: ThinkingSigner, *, counts: bool = False) -> MessagesRequest:
    """The chat that a body stands for.

    Args:
        counts: whether the prompt is only counted, so that `max_tokens` may be missing.

    Raises:
        Fault: INVALID_JSON, or MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field.
    """
    document: dict[str, Any] = parse_object(body)
    turns = document.get("messages")
    if turns is None and document.get("system") is not None:
        _missing("messages")  # without both, a prompt of the registry may have them
    if document.get("max_tokens") is None and not counts:
        _missing("max_tokens")
    messages, places = ([], []) if turns is None else chat_messages(document.get("system"), turns, signer)
    chat: dict[str, Any] = {} if document.get("model") is None else {"model": document["model"]}
    if turns is not None:
        chat["messages"] = messages
    for name, value in document.items():
        if name in CHATS and value is not None:
            _unsupported(name, "it is a field of chats, and this API has another one or none. Leave it out, or use /v1/chat/completions")
        if name not in DROPPED:
            chat[name] = value
    _refuse_hosted(document)
    stream = document.get("stream")
    if stream is not None and type(stream) is not bool:
        refuse_type("a boolean", stream, "stream")
    if stream:
        chat["stream"] = True
        chat["stream_options"] = {"include_usage": True}
    stops = document.get("stop_sequences")
    if stops:
        if type(stops) is not list:
            refuse_type("an array", stops, "stop_sequences")
        chat["stop"] = stops
    _add_identity(document.get("metadata"), chat)
    _add_thinking(document, chat)
    _add_format(document, chat)
    _add_tools(document, chat)
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        # the answer goes on from the text of the last turn
        chat["continue_final_message"], chat["add_generation_prompt"] = True, False
    return MessagesRequest(_encode(chat), bool(stream), tuple(places), document.get("context_management") is not None)


def in_callers_words(fault: Fault, places: Sequence[str]) -> Fault:
    """A fault that names a field of the chat, with the name of the caller's field in its message. A part of a message's content is not
    told, since turns were merged.

    Args:
        places: as in `MessagesRequest`.
    """
    param = fault.param
    if param is None:
        return fault
    found = _MESSAGE.match(param)
    if found is not None:
        at = int(found[1])
        name = places[at] if at < len(places) else "messages"
    else:
        head, _, rest = param.partition("[")
        name = NAMES.get(head.partition(".")[0], head)
        if rest:
            name += "." + rest.partition("]")[0]
    return Fault(
        fault.kind, fault.message.replace(f"'{param}'", f"'{name}'"), param=name, code=fault.code, retry=fault.retry, detail=fault.detail
    )


def _refuse_hosted(document: Mapping[str, Any]) -> None:
    """Refuse what the vendor's own service does and nothing here does."""
    if document.get("container") is not None:
        _unsupported("container", "the gateway has no containers. Leave it out")
    if document.get("mcp_servers"):
        _unsupported("mcp_servers", "the gateway calls no MCP servers. Have the client call them, and send their tools in 'tools'")
    if document.get("speed") == "fast":
        _unsupported("speed", "the engines have one speed. Leave it out")


def _add_identity(metadata: object, chat: dict[str, Any]) -> None:
    """Write the end user and the session that `metadata.user_id` names where chats have them."""
    if metadata is None:
        return
    if type(metadata) is not dict:
        refuse_type("an object", metadata, "metadata")
    user = metadata.get("user_id")
    if user is None:
        return
    if type(user) is not str:
        refuse_type("a string", user, "metadata.user_id")
    user, session = identity(user)
    if user:
        chat["user"] = user
    if session:
        chat["session_id"] = session


def identity(user_id: str) -> tuple[str, str]:
    """The user and the session in `metadata.user_id`; the session is empty where there is none. Claude Code writes both into it, as a name
    or as a JSON object, and a label of a user that changed with each session would be no label of a user."""
    if user_id.startswith("{"):
        try:
            members = msgspec.json.decode(user_id.encode(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return user_id, ""
        session = next((members.pop(key) for key in _SESSION_KEYS if type(members.get(key)) is str), "")
        return ".".join([value for value in members.values() if type(value) is str and value]), session
    found = _SESSION.match(user_id)
    return (found["user"], found["session"]) if found is not None else (user_id, "")


def _add_thinking(document: Mapping[str, Any], chat: dict[str, Any]) -> None:
    thinking, config = document.get("thinking"), document.get("output_config")
    asked = None
    if thinking is not None:
        if type(thinking) is not dict:
            refuse_type("an object", thinking, "thinking")
        kind = thinking.get("type")
        if type(kind) is not str or kind not in THINKING:
            refuse(f"Invalid value for 'thinking.type': it is one of {', '.join(THINKING)}.", "thinking.type")
        asked = THINKING[kind]
    if asked is not None:
        chat["enable_thinking"] = asked
    if config is None:
        return
    if type(config) is not dict:
        refuse_type("an object", config, "output_config")
    effort = config.get("effort")
    if effort is None:
        return
    if type(effort) is not str or effort not in EFFORTS:
        refuse(f"Invalid value for 'output_config.effort': it is one of {', '.join(EFFORTS)}.", "output_config.effort")
    if asked is not False:  # without thinking an effort says nothing
        chat["reasoning_effort"] = EFFORTS[effort]


def _add_format(document: Mapping[str, Any], chat: dict[str, Any]) -> None:
    """Write the schema of the answer; `output_format` is the beta's name of `output_config.format`."""
    config = document.get("output_config")
    form, where = document.get("output_format"), "output_format"
    if form is None and type(config) is dict:
        form, where = config.get("format"), "output_config.format"
    if form is None:
        return
    if type(form) is not dict:
        refuse_type("an object", form, where)
    if form.get("type") != "json_schema":
        refuse(f"Invalid value for '{where}.type': it is 'json_schema'.", f"{where}.type")
    schema = form.get("schema")
    if type(schema) is not dict:
        refuse_type("an object", schema, f"{where}.schema")
    chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _add_tools(document: Mapping[str, Any], chat: dict[str, Any]) -> None:
    tools, choice = document.get("tools"), document.get("tool_choice")
    if tools:
        if type(tools) is not list:
            refuse_type("an array", tools, "tools")
        chat["tools"] = [_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)]
    if choice is None:
        return
    if type(choice) is not dict:
        refuse_type("an object", choice, "tool_choice")
    kind = choice.get("type")
    if kind == "tool":
        name = choice.get("name")
        if type(name) is not str:
            refuse_type("a string", name, "tool_choice.name")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in ("auto", "any", "none"):
        chat["tool_choice"] = "required" if kind == "any" else kind
    else:
        refuse("Invalid value for 'tool_choice.type': it is one of auto, any, tool, none.", "tool_choice.type")
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False


def _tool(tool: object, where: str) -> dict[str, Any]:
    """A tool as a chat's function. What says only how the vendor loads or streams a tool is left out."""
    if type(tool) is not dict:
        refuse_type("an object", tool, where)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        named = shown(kind) if type(kind) is str else "this type"
        _unsupported(f"{where}.type", f"{named} is a tool of the vendor's own service or models. Send a tool with an 'input_schema'")
    name = tool.get("name")
    if name is None:
        _missing(f"{where}.name")
    if type(name) is not str:
        refuse_type("a string", name, f"{where}.name")
    schema = tool.get("input_schema")
    if schema is None:
        _missing(f"{where}.input_schema")
    if type(schema) is not dict:
        refuse_type("an object", schema, f"{where}.input_schema")
    function: dict[str, Any] = {"name": name}
    description = tool.get("description")
    if description is not None:
        if type(description) is not str:
            refuse_type("a string", description, f"{where}.description")
        function["description"] = description
    function["parameters"] = schema
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def _missing(param: str) -> NoReturn:
    raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)


def _unsupported(param: str, why: str) -> NoReturn:
    raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{param}' is not supported: {why}.", param=param)
