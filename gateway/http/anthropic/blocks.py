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
    "file": "the gateway has no files. Send the content itself",
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


def chat_messages(system: object, turns: object, signer: ThinkingSigner) -> list[Block]:
    """The messages of the chat.

    Args:
        system: the value of `system`, or None.
        turns: the value of `messages`.

    Raises:
        Fault: INVALID_VALUE, MISSING_PARAMETER or UNSUPPORTED_PARAMETER with the path of the block.
    """
    if type(turns) is not list:
        refuse_type("an array", turns, "messages")
    messages: list[Block] = []
    if (opening := _system_text(system)) is not None:
        messages.append({"role": "system", "content": opening})
    for index, turn in enumerate(turns):
        where = f"messages.{index}"
        if type(turn) is not dict:
            refuse_type("an object", turn, where)
        role, content = turn.get("role"), turn.get("content")
        if role == "user":
            _add_user(content, f"{where}.content", messages)
        elif role == "assistant":
            _add_assistant(content, f"{where}.content", messages, signer)
        elif role == "system":
            messages.append({"role": "system", "content": _joined(content, f"{where}.content", "\n\n")})
        elif role is None:
            _missing(f"{where}.role")
        else:
            refuse(f"Invalid value for '{where}.role': it is 'user', 'assistant' or 'system'.", f"{where}.role")
    return messages


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


def _add_user(content: object, where: str, messages: list[Block]) -> None:
    """Add a user's turn: first the results of tools in it, then the rest."""
    if type(content) is str:
        _add_parts([content], messages)
        return
    parts: list[Any] = []
    for index, block in enumerate(_blocks(content, where)):
        at = f"{where}.{index}"
        if _kind(block, at) == "tool_result":
            text, images = _result(block, at)
            call = _string(block, "tool_use_id", at)
            messages.append({"role": "tool", "tool_call_id": call, "content": text})
            parts += images
        else:
            parts += _parts(block, at)
    if parts or not _blocks(content, where):
        _add_parts(parts, messages)


def _add_parts(parts: list[Any], messages: list[Block]) -> None:
    """Add the parts of a user's turn, to the last message where that is the user's too. A turn of one text is that text."""
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "user":
        before = last["content"]
        parts = ([before] if type(before) is str else before) + parts
        last["content"] = parts if len(parts) == 1 and type(parts[0]) is str else [_part(part) for part in parts]
        return
    if len(parts) == 1 and type(parts[0]) is str:
        messages.append({"role": "user", "content": parts[0]})
    else:
        messages.append({"role": "user", "content": [_part(part) for part in parts]})


def _part(part: Any) -> Block:
    return {"type": "text", "text": part} if type(part) is str else part


def _add_assistant(content: object, where: str, messages: list[Block], signer: ThinkingSigner) -> None:
    """Add the model's turn, to the last message where that is the model's too."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Block] = []
    if type(content) is str:
        texts.append(content)
    else:
        for index, block in enumerate(_blocks(content, where)):
            at = f"{where}.{index}"
            kind = _kind(block, at)
            if kind == "text":
                texts.append(_string(block, "text", at))
            elif kind == "thinking":
                thoughts.append(_thinking(block, at, signer))
            elif kind == "tool_use":
                calls.append(_call(block, at))
            else:
                _refuse_kind(kind, f"{at}.type", "text, thinking, tool_use")
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant":
        last = {"role": "assistant", "content": None}
        messages.append(last)
    if texts:
        last["content"] = (last["content"] or "") + "".join(texts)
    if thoughts:
        last["reasoning_content"] = last.get("reasoning_content", "") + "".join(thoughts)
    if calls:
        last["tool_calls"] = [*last.get("tool_calls", ()), *calls]


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
