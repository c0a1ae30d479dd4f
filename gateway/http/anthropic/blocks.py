"""The messages of Anthropic's Messages API as those of a chat: blocks of content become texts, images, calls of tools and their results.

- `system` becomes one message in front. The line in which Claude Code tells its version and a value that changes with every request is
  left out: it would make every prompt a new one for the prefix index and the answer cache.
- Turns of one role that follow each other are one turn, as the API has it.
- Results of tools become messages of the role `tool`, in front of the rest of their turn. Images in a result stand in the user's turn
  behind it, because engines take texts alone from a tool.
- Thinking is the turn's `reasoning_content`, where its signature is ours.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from domain.faults import Fault, Kind
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.openai.checks import refuse, refuse_type, shown

Block = dict[str, Any]
"""A block of content, or a message, as its JSON object."""

BILLING_LINE: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""The line of Claude Code at the beginning of a block of `system`."""

NOT_HERE: Final = {
    "file": "the gateway puts no files into prompts. Send the content itself",
    "server_tool_use": "the gateway runs no tools. Remove the block",
    "web_search_tool_result": "the gateway runs no tools. Send the result as text",
    "web_fetch_tool_result": "the gateway runs no tools. Send the result as text",
    "code_execution_tool_result": "the gateway runs no tools. Send the result as text",
    "bash_code_execution_tool_result": "the gateway runs no tools. Send the result as text",
    "text_editor_code_execution_tool_result": "the gateway runs no tools. Send the result as text",
    "tool_search_tool_result": "the gateway runs no tools. Send the tools in 'tools'",
    "mcp_tool_use": "the gateway runs no tools. Remove the block",
    "mcp_tool_result": "the gateway runs no tools. Send the result as text",
    "container_upload": "the gateway has no containers. Send the content itself",
    "redacted_thinking": "it was made by another server. Remove the block",
}
"""Kinds of blocks and sources that need something which is not here, with what to do."""

_encode = msgspec.json.Encoder().encode


def chat_messages(system: object, turns: object, signer: ThinkingSigner) -> tuple[list[Block], list[str]]:
    """The messages of the chat, and the path of the field that each of them was, or began with.

    Args:
        system: the value of `system`, or None.
        turns: the value of `messages`.

    Raises:
        Fault: INVALID_VALUE, MISSING_PARAMETER or UNSUPPORTED_PARAMETER with the path of the block.
    """
    if type(turns) is not list:
        refuse_type("an array", turns, "messages")
    said = _Turns()
    if (opening := _system_text(system)) is not None:
        said.say({"role": "system", "content": opening}, "system")
    for index, turn in enumerate(turns):
        where = f"messages.{index}"
        if type(turn) is not dict:
            refuse_type("an object", turn, where)
        role, content = turn.get("role"), turn.get("content")
        if role == "user":
            said.add_user(content, f"{where}.content")
        elif role == "assistant":
            said.add_assistant(content, f"{where}.content", signer)
        elif role == "system":
            said.say({"role": "system", "content": _joined(content, f"{where}.content", "\n\n")}, where)
        elif role is None:
            _missing(f"{where}.role")
        else:
            refuse(f"Invalid value for '{where}.role': it is 'user', 'assistant' or 'system'.", f"{where}.role")
    said.end()
    return said.messages, said.places


def _system_text(system: object) -> str | None:
    """The text of `system` without Claude Code's billing line; None where nothing is left."""
    if system is None:
        return None
    if type(system) is str:
        texts = [system]
    elif type(system) is list:
        texts = [_text_of(block, f"system.{index}") for index, block in enumerate(system)]
    else:
        refuse_type("a string or an array of blocks", system, "system")
    kept = [text for text in [BILLING_LINE.sub("", text) for text in texts] if text]
    return "\n\n".join(kept) if kept else None


class _Turns:
    """The chat's messages so far. A turn that is still being merged keeps its pieces in lists, and becomes a message at its end, so that
    many short turns of one role cost no more than one long turn."""

    __slots__ = ("_calls", "_parts", "_role", "_texts", "_thoughts", "messages", "places")

    def __init__(self) -> None:
        self.messages: list[Block] = []
        self.places: list[str] = []
        """The path of each message's field; one longer than `messages` while a turn is being merged."""
        self._role = ""
        """The role of the turn that is being merged; empty for none."""
        self._parts: list[Any] = []
        """The pieces of a user's turn: texts as strings, images as parts."""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Block] = []

    def begin(self, role: str, where: str) -> None:
        """Go on with the turn of this role, or begin it."""
        if self._role != role:
            self.end()
            self._role = role
            self.places.append(where.removesuffix(".content"))

    def say(self, message: Block, where: str) -> None:
        """Add a message that merges with none."""
        self.end()
        self.messages.append(message)
        self.places.append(where)

    def end(self) -> None:
        """Make a message of the turn that is being merged."""
        role, self._role = self._role, ""
        if role == "user":
            parts, self._parts = self._parts, []
            lone = len(parts) == 1 and type(parts[0]) is str
            content: object = parts[0] if lone else [_part(part) for part in parts]
            self.messages.append({"role": "user", "content": content})
        elif role:
            message: Block = {"role": "assistant", "content": "".join(self._texts) if self._texts else None}
            if self._thoughts:
                message["reasoning_content"] = "".join(self._thoughts)
            if self._calls:
                message["tool_calls"] = self._calls
            self._texts, self._thoughts, self._calls = [], [], []
            self.messages.append(message)

    def add_user(self, content: object, where: str) -> None:
        """Add a user's turn: first the results of tools in it, then the rest."""
        if type(content) is str:
            self.begin("user", where)
            self._parts.append(content)
            return
        parts: list[Any] = []
        blocks = _blocks(content, where)
        for index, block in enumerate(blocks):
            at = f"{where}.{index}"
            if _kind(block, at) == "tool_result":
                text, images = _result(block, at)
                call = _string(block, "tool_use_id", at)
                self.say({"role": "tool", "tool_call_id": call, "content": text}, at)
                parts += images
            else:
                parts += _parts(block, at)
        if parts or not blocks:
            self.begin("user", where)
            self._parts += parts

    def add_assistant(self, content: object, where: str, signer: ThinkingSigner) -> None:
        """Add the model's turn."""
        self.begin("assistant", where)
        if type(content) is str:
            self._texts.append(content)
            return
        for index, block in enumerate(_blocks(content, where)):
            at = f"{where}.{index}"
            kind = _kind(block, at)
            if kind == "text":
                self._texts.append(_string(block, "text", at))
            elif kind == "thinking":
                self._thoughts.append(_thinking(block, at, signer))
            elif kind == "tool_use":
                self._calls.append(_call(block, at))
            else:
                _refuse_kind(kind, f"{at}.type", "text, thinking, tool_use")


def _part(part: Any) -> Block:
    return {"type": "text", "text": part} if type(part) is str else part


def _thinking(block: Block, where: str, signer: ThinkingSigner) -> str:
    thinking, signature = _string(block, "thinking", where), _string(block, "signature", where)
    if not signer.knows(thinking, signature):
        param = f"{where}.signature"
        refuse(f"Invalid value for '{param}': this thinking was not made here, or was changed. Remove the block.", param)
    return thinking


def _call(block: Block, where: str) -> Block:
    given = block.get("input")
    if type(given) is not dict:
        refuse_type("an object", given, f"{where}.input")
    function = {"name": _string(block, "name", where), "arguments": _encode(given).decode()}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _result(block: Block, where: str) -> tuple[str, list[Block]]:
    """The text of a tool's result, and its images."""
    content, failed = block.get("content"), block.get("is_error") is True
    if content is None:
        return ("The tool failed." if failed else ""), []
    if type(content) is str:
        return content, []
    parts: list[Any] = []
    for index, inner in enumerate(_blocks(content, f"{where}.content")):
        parts += _parts(inner, f"{where}.content.{index}")
    return "\n".join([part for part in parts if type(part) is str]), [part for part in parts if type(part) is not str]


def _parts(block: Block, where: str) -> list[Any]:
    """The parts of a message that a user's block is: texts as strings, images as parts."""
    kind = _kind(block, where)
    if kind == "text":
        return [_string(block, "text", where)]
    if kind == "image":
        return [_image(_object(block, "source", where), f"{where}.source")]
    if kind == "document":
        return _document(block, where)
    if kind == "search_result":
        content = _joined(block.get("content"), f"{where}.content", "\n")
        return [f"{_string(block, 'title', where)}\n{_string(block, 'source', where)}\n{content}"]
    _refuse_kind(kind, f"{where}.type", "text, image, document, search_result, tool_result")


def _image(source: Block, where: str) -> Block:
    kind = _kind(source, where)
    if kind == "base64":
        url = f"data:{_string(source, 'media_type', where)};base64,{_string(source, 'data', where)}"
    elif kind == "url":
        url = _string(source, "url", where)
    else:
        _refuse_kind(kind, f"{where}.type", "base64, url")
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Block, where: str) -> list[Any]:
    """A document's texts and images, with its title and its context in front."""
    citations = block.get("citations")
    if type(citations) is dict and citations.get("enabled") is True:
        _unsupported(f"{where}.citations", "the engines make no citations. Leave it out")
    source = _object(block, "source", where)
    kind = _kind(source, f"{where}.source")
    if kind == "text":
        parts: list[Any] = [_string(source, "data", f"{where}.source")]
    elif kind == "content":
        inner = source.get("content")
        at = f"{where}.source.content"
        parts = [inner] if type(inner) is str else [part for i, one in enumerate(_blocks(inner, at)) for part in _parts(one, f"{at}.{i}")]
    elif kind in ("base64", "url"):
        _unsupported(f"{where}.source", "engines read no PDF. Send the document's text, or its pages as images")
    else:
        _refuse_kind(kind, f"{where}.source.type", "text, content")
    head = [value for key in ("title", "context") if type(value := block.get(key)) is str and value]
    return ["\n".join(head), *parts] if head else parts


def _joined(content: object, where: str, between: str) -> str:
    """Content of texts alone as one string."""
    if type(content) is str:
        return content
    return between.join([_text_of(block, f"{where}.{index}") for index, block in enumerate(_blocks(content, where))])


def _text_of(block: object, where: str) -> str:
    if type(block) is not dict:
        refuse_type("an object", block, where)
    if (kind := _kind(block, where)) != "text":
        _refuse_kind(kind, f"{where}.type", "text")
    return _string(block, "text", where)


def _blocks(content: object, where: str) -> Sequence[Block]:
    if content is None:
        _missing(where)
    if type(content) is not list:
        refuse_type("a string or an array of blocks", content, where)
    for index, block in enumerate(content):
        if type(block) is not dict:
            refuse_type("an object", block, f"{where}.{index}")
    return content


def _kind(block: Mapping[str, Any], where: str) -> str:
    return _string(block, "type", where)


def _string(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if value is None:
        _missing(f"{where}.{key}")
    if type(value) is not str:
        refuse_type("a string", value, f"{where}.{key}")
    return value


def _object(block: Mapping[str, Any], key: str, where: str) -> Block:
    value = block.get(key)
    if value is None:
        _missing(f"{where}.{key}")
    if type(value) is not dict:
        refuse_type("an object", value, f"{where}.{key}")
    return value


def _missing(param: str) -> NoReturn:
    raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{param}'.", param=param)


def _refuse_kind(kind: str, param: str, known: str) -> NoReturn:
    if kind in NOT_HERE:
        _unsupported(param, NOT_HERE[kind], kind)
    refuse(f"Invalid value for '{param}': {shown(kind)} is not one of {known}.", param)


def _unsupported(param: str, why: str, what: str = "") -> NoReturn:
    named = f"'{what}' at '{param}'" if what else f"'{param}'"
    raise Fault(Kind.UNSUPPORTED_PARAMETER, f"{named} is not supported: {why}.", param=param)
