"""A chat in the form in which engines hand it to the chat template. Pure.

The form is vLLM's: content is one text, or parts where the template loops over parts; the arguments of a tool call are an object and no
text; a tool has all of its members. Other engines differ in details of tools.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import nodes

TEXT_PARTS: Final = ("text", "input_text")


class Unreadable(Exception):
    """The prompt holds more than text, or its template refuses it: only the engine can count it."""


def takes_parts(tree: nodes.Template) -> bool:
    """Whether a template loops over the parts of a message's content, and so gets parts where it could get a text."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def messages_of(document: Mapping[str, Any], *, parts: bool, developer: bool) -> list[dict[str, Any]]:
    """The messages of a checked request.

    Args:
        parts: whether the template takes parts (`takes_parts`).
        developer: whether the template knows the role `developer`; without it these messages get the role `system`.

    Raises:
        Unreadable: a message holds media.
    """
    messages = [_message(message, parts=parts) for message in document["messages"]]
    if not developer and any(message["role"] == "developer" for message in messages):
        if any(message["role"] in ("system", "developer") for message in messages[1:]):
            raise Unreadable("several messages of system and developer, which engines join in different ways")
        messages[0]["role"] = "system"
    return messages


def tools_of(document: Mapping[str, Any]) -> list[Any] | None:
    """The tools of a checked request."""
    tools = document.get("tools")
    return None if tools is None else [_tool(tool) for tool in tools]


def _is_content(node: nodes.Node | None) -> bool:
    while isinstance(node, nodes.Filter | nodes.Test) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return (isinstance(node, nodes.Getattr) and node.attr == "content") or (isinstance(node, nodes.Name) and node.name == "content")


def _message(message: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    texts = _texts(message.get("content"))
    content: Any = [{"type": "text", "text": text} for text in texts] if parts and message["role"] != "tool" else "\n".join(texts)
    formed = {**message, "content": content}
    if message["role"] == "assistant" and "tool_calls" in message:
        formed["tool_calls"] = [_call(call) for call in message["tool_calls"] or ()]
        if not formed["tool_calls"]:
            del formed["tool_calls"]
    return formed


def _texts(content: object) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content is not None else []
    texts = []
    for part in content if isinstance(content, list) else (None,):
        if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise Unreadable("a message has parts that are no text")
    return texts


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        raise Unreadable("a tool call is no function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise Unreadable("a tool is no function")
    members = {name: function.get(name) for name in ("name", "description", "parameters")}
    members |= {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": members}
