"""Input items to the messages of a chat.

Items are finer than messages: one turn of an assistant is an item of reasoning, one of text and one for each call. Neighbouring items of
the assistant therefore become one message, which is also the form that engines want: the results of calls follow the message that made
them. Instructions and the messages of system and developer right behind them become one message, because most templates take one
such message and only at the front.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import refuse, refuse_type, shown
from gateway.http.responses.tools import INPUT, ResponseTools, function_name

SEAL: Final = "tidegate-v1."
"""Begins the `encrypted_content` that the gateway made. It hides nothing, since the reasoning stands beside it in the clear. It is there
for callers who send back nothing else of an item of reasoning, as Codex CLI does, so that the model sees again what it thought."""

_REFUSED: Final[Mapping[str, str]] = {
    "item_reference": "send the item itself, or continue its Response with 'previous_response_id'",
    "compaction": "it can be read only by the server that made it; send the items that it stands for",
    "compaction_trigger": "send a request for a summary as a message",
    "program": "send function calls",
    "program_output": "send function calls",
}
"""By type of item: what to do instead."""

INSTRUCTIONS: Final = -1
EARLIER: Final = -2
"""The places of messages that are not made of the input: of the instructions, and of the conversation that the request continues."""

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_OPENING: Final = frozenset({"system", "developer"})
_JOINT: Final = "\n\n"

_encode = msgspec.json.Encoder().encode


def sealed(reasoning: str) -> str:
    """The `encrypted_content` of an item of reasoning."""
    return SEAL + b64encode(reasoning.encode("utf-8", "replace")).decode("ascii")


def _unsealed(content: str) -> str:
    """The reasoning in an `encrypted_content`; empty for that of another server, which nobody here can read."""
    if not content.startswith(SEAL):
        return ""
    try:
        return b64decode(content[len(SEAL) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


class ChatMessages(msgspec.Struct, eq=False):
    """The messages that the items make, one by one."""

    tools: ResponseTools
    """Gets the tools that stand among the items."""
    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    places: list[int] = msgspec.field(default_factory=list)
    """By message: the item that it began with, `INSTRUCTIONS` or `EARLIER`."""
    at: int = INSTRUCTIONS
    """The item at hand."""
    turn: dict[str, Any] | None = None
    """The assistant's message while it grows."""
    opening: bool = True
    """Whether all messages so far are one of system or developer at most."""
    pieces: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """By member of the last message, which alone grows: its texts so far, where there are several."""
    grown: list[tuple[dict[str, Any], str, str, list[str]]] = msgspec.field(default_factory=list)
    """The message, the member, the joint and the texts of all such members. They are joined once, at the end: a long text would
    otherwise be copied for each short one behind it."""

    def add_instructions(self, text: object) -> None:
        """Put the instructions in front.

        Raises:
            Fault: INVALID_VALUE, they are no text.
        """
        if type(text) is not str:
            refuse_type("a string", text, "instructions")
        if text:
            self._append({"role": "system", "content": text})

    def add_earlier(self, items: Iterable[Any], param: str = "previous_response_id") -> None:
        """Add the items of the conversation that the request continues.

        Args:
            param: the parameter that names it.

        Raises:
            Fault: as `add`, for the parameter that names the conversation.
        """
        self.at = EARLIER
        for item in items:
            self._add_item(item, param)

    def add(self, items: object, param: str = "input") -> None:
        """Add the request's `input`, behind which nothing comes.

        Args:
            param: its name in the request.

        Raises:
            Fault: INVALID_VALUE or MISSING_PARAMETER with the path of the field, UNSUPPORTED_PARAMETER for an item that needs the vendor's
                servers.
        """
        if type(items) is str:
            self.at = 0
            self._append({"role": "user", "content": items})
            self._join_all()
            return
        if type(items) is not list:
            refuse_type("a string or an array", items, param)
        if not items:
            refuse(f"Invalid value for '{param}': it is empty.", param)
        for self.at, item in enumerate(items):
            self._add_item(item, f"{param}[{self.at}]")
        self._join_all()

    def _join_all(self) -> None:
        for message, member, joint, pieces in self.grown:
            message[member] = joint.join(pieces)

    def _add_item(self, item: object, where: str) -> None:
        if type(item) is not dict:
            refuse_type("an object", item, where)
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        read = _READERS.get(kind) if type(kind) is str else None
        if read is None:
            _refuse_item(kind, f"{where}.type")
        read(self, item, where)

    def _join(self, member: str, text: str, joint: str) -> None:
        """Add to a text of the last message."""
        message = self.messages[-1]
        before = message.get(member)
        if before is None:
            message[member] = text
            return
        pieces = self.pieces.get(member)
        if pieces is None:
            pieces = self.pieces[member] = [before]
            self.grown.append((message, member, joint, pieces))
        pieces.append(text)

    def _append(self, message: dict[str, Any]) -> None:
        self.opening = self.opening and not self.messages and message["role"] in _OPENING
        self.messages.append(message)
        self.places.append(self.at)
        self.pieces = {}

    def _assistant(self) -> dict[str, Any]:
        """The assistant's message that the item at hand belongs to: the last one."""
        if self.turn is None:
            self.turn = {"role": "assistant", "content": None}
            self._append(self.turn)
        return self.turn

    def message(self, item: dict[str, Any], where: str) -> None:
        """Add a message, in its easy or its full form."""
        role = item.get("role")
        if type(role) is not str or role not in _ROLES:
            _refuse_value(role, f"{where}.role", "a string", f"{shown(str(role))} is not one of user, assistant, system, developer")
        content = item.get("content")
        if role == "assistant":
            self._said(content, f"{where}.content")
            return
        self.turn = None
        content = _content(content, f"{where}.content")
        if role in _OPENING and self.opening and self.messages and type(content) is str:
            self._join("content", content, _JOINT)
            return
        if type(content) is not str:
            self.opening = False
        self._append({"role": role, "content": content})

    def _said(self, content: object, where: str) -> None:
        texts: list[str] = []
        refusals: list[str] = []
        if type(content) is str:
            texts.append(content)
        elif type(content) is list:
            for index, part in enumerate(content):
                kind = part.get("type") if type(part) is dict else None
                if kind == "refusal":
                    refusals.append(_text_of(part, "refusal", f"{where}[{index}]"))
                elif kind in _TEXTS:
                    texts.append(_text_of(part, "text", f"{where}[{index}]"))
                else:
                    _refuse_value(kind, f"{where}[{index}].type", "a string", "an assistant's part is output_text or refusal")
        else:
            _refuse_value(content, where, "a string or an array of parts", "it is missing")
        self._assistant()
        if texts:
            self._join("content", "".join(texts), "\n")
        if refusals:
            self._join("refusal", "".join(refusals), "\n")

    def reasoning(self, item: dict[str, Any], where: str) -> None:
        """Add an item of reasoning: its text where it has one, else what the gateway made of it, else its summary."""
        text = _texts(item.get("content"), f"{where}.content")
        if not text and type(sealed_text := item.get("encrypted_content")) is str:
            text = _unsealed(sealed_text)
        if not text:
            text = _texts(item.get("summary"), f"{where}.summary")
        if text:
            self._assistant()
            self._join("reasoning_content", text, _JOINT)

    def function_call(self, item: dict[str, Any], where: str) -> None:
        """Add a call of a function."""
        self._call(item, where, _text_of(item, "arguments", where))

    def custom_tool_call(self, item: dict[str, Any], where: str) -> None:
        """Add a call of a custom tool, as that of the function that stands for it."""
        self._call(item, where, _encode({INPUT: _text_of(item, INPUT, where)}).decode())

    def _call(self, item: dict[str, Any], where: str, arguments: str) -> None:
        name = function_name(_text_of(item, "name", where), item.get("namespace"))
        call = {"id": _text_of(item, "call_id", where), "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant().setdefault("tool_calls", []).append(call)

    def call_output(self, item: dict[str, Any], where: str) -> None:
        """Add the result of a call."""
        output = _content(item.get("output"), f"{where}.output")
        self.turn = None
        self._append({"role": "tool", "tool_call_id": _text_of(item, "call_id", where), "content": output})

    def more_tools(self, item: dict[str, Any], where: str) -> None:
        """Add tools that the caller found on the way."""
        self.tools.add(item.get("tools"), f"{where}.tools")


_READERS: Final[Mapping[str, Callable[[ChatMessages, dict[str, Any], str], None]]] = {
    "message": ChatMessages.message,
    "reasoning": ChatMessages.reasoning,
    "function_call": ChatMessages.function_call,
    "custom_tool_call": ChatMessages.custom_tool_call,
    "function_call_output": ChatMessages.call_output,
    "custom_tool_call_output": ChatMessages.call_output,
    "additional_tools": ChatMessages.more_tools,
}

_TEXTS: Final = ("input_text", "output_text", "text")
"""A tuple, because a caller's value that is looked up in it may be a list."""


def _content(content: object, where: str) -> object:
    """A message's content as a chat has it; one part of text alone as a string, which every template takes."""
    if type(content) is str:
        return content
    if type(content) is not list:
        _refuse_value(content, where, "a string or an array of parts", "it is missing")
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _part(part: object, where: str) -> dict[str, Any]:
    if type(part) is not dict:
        refuse_type("an object", part, where)
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": _text_of(part, "text", where)}
    if kind == "input_image":
        if part.get("file_id") is not None:
            _refuse_file(f"{where}.file_id")
        image = {"url": _text_of(part, "image_url", where)}
        if part.get("detail") is not None:
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        _refuse_file(f"{where}.type")
    _refuse_value(kind, f"{where}.type", "a string", f"{shown(str(kind))} is not one of input_text, input_image, input_audio")


def _refuse_file(param: str) -> NoReturn:
    message = (
        f"The parameter '{param}' is not supported: files are not put into prompts here. Send the text of the file, or its pages as images."
    )
    raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)


def _refuse_item(kind: object, param: str) -> NoReturn:
    if kind is None:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
    if type(kind) is not str:
        refuse_type("a string", kind, param)
    if kind in _REFUSED:
        raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The item {shown(kind)} is not supported: {_REFUSED[kind]}.", param=param)
    message = f"The item {shown(kind)} is not supported: no such tool runs here. Leave it out, or send what it says as a message."
    raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)


def _refuse_value(value: object, param: str, expected: str, reason: str) -> NoReturn:
    """Refuse a value that is missing, of the wrong type or no word of ours."""
    if value is None:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)
    if type(value) is not str:
        refuse_type(expected, value, param)
    refuse(f"Invalid value for '{param}': {reason}.", param)


def _text_of(holder: Mapping[str, Any], key: str, where: str) -> str:
    value = holder.get(key)
    if type(value) is not str:
        _refuse_value(value, f"{where}.{key}", "a string", "")
    return value


def _texts(parts: object, where: str) -> str:
    """The texts of an item of reasoning, one below the other."""
    if parts is None:
        return ""
    if type(parts) is not list:
        refuse_type("an array", parts, where)
    texts = []
    for index, part in enumerate(parts):
        if type(part) is not dict:
            refuse_type("an object", part, f"{where}[{index}]")
        texts.append(_text_of(part, "text", f"{where}[{index}]"))
    return _JOINT.join(texts)
