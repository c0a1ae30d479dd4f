"""What a chat request asks: its last turn, and everything that stands before that. Pure."""

from typing import Final

import msgspec

from domain.ask import Ask, Endpoint

ENDPOINT: Final = "endpoint"
TOOLS: Final = "tools"
SCHEMA: Final = "schema"
TURN: Final = "turn"
REFUSALS: Final = (ENDPOINT, TOOLS, SCHEMA, TURN)
"""Why a request is not looked up among similar ones, whatever its text says."""

_TOOL_MEMBERS: Final = frozenset({"tools", "functions"})
_STRUCTURED: Final = frozenset(
    {
        "ebnf",
        "grammar",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "regex",
        "structural_tag",
        "structured_outputs",
    }
)
"""Members with which vLLM, SGLang and llama.cpp are told a form that the answer must have."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """The question of a request."""

    text: str
    """The text of the last message, which is the user's."""
    before: bytes
    """The messages before it as JSON, and what the last one has beside its text."""


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str = ""


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None
    name: str = ""


class _Formed(msgspec.Struct, gc=False):
    type: str = "text"


class _Members(msgspec.Struct, gc=False):
    response_format: _Formed | None = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(_Members).decode


def conversation_of(ask: Ask) -> Asked | str:
    """The question of a request, or why it is not looked up among similar ones: one of `REFUSALS`.

    A request whose answer depends on tools, or has to have a form, is not: what fits one question's arguments seldom fits another's.
    Earlier turns are a part of what has to be equal, so a follow-up question only resembles one that was asked after the same turns.
    """
    if ask.endpoint is not Endpoint.CHAT:
        return ENDPOINT
    if not ask.names.isdisjoint(_TOOL_MEMBERS):
        return TOOLS
    if not ask.names.isdisjoint(_STRUCTURED):
        return SCHEMA
    if "response_format" in ask.names:
        formed = _decode_members(ask.fields).response_format
        if formed is not None and formed.type != "text":
            return SCHEMA
    try:
        messages = _decode_messages(ask.prompt)
    except msgspec.ValidationError:
        return TURN
    if not messages or messages[-1].role != "user":
        return TOOLS if messages and messages[-1].role in ("tool", "function") else TURN
    if any(one.role in ("tool", "function") or one.tool_calls or one.function_call is not None for one in messages):
        return TOOLS
    last = messages[-1]
    text = _text_of(last)
    if text is None:
        return TURN
    earlier = _decode_raw(ask.prompt)[:-1]
    return Asked(text, b"\n".join([*earlier, last.name.encode()]))


def _text_of(message: _Message) -> str | None:
    """The whole text of a message; None where it has parts that are not text."""
    if isinstance(message.content, str):
        return message.content
    if not message.content or any(part.type != "text" for part in message.content):
        return None
    return "\n".join([part.text for part in message.content])
