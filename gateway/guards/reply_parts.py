"""The texts of one choice of an answer, wherever an engine or a vendor puts them: found, changed and put back. Pure.

Every string counts as text but identifiers, so that a member nobody has heard of does not pass unread. The name of a tool that the model
calls is a text too: the model has written it, whatever the request's list of tools. A text is known by its path, which
is the same in each event of a stream: `delta.content`, or `delta.tool_calls[index 1].function.arguments`.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from guardrails.policy import Direction


class OwnIndex(NamedTuple):
    """A step of a path into a list whose members say their own place in a member `index`, as calls of tools in a stream do."""

    at: int


Step = str | int | OwnIndex
Path = tuple[Step, ...]
"""From a choice down to one of its texts."""

IDENTIFIERS: Final = frozenset({"role", "type", "id", "index", "name", "object", "finish_reason", "status", "format"})
"""Members that are no text: of a fixed set, or of the engine's own count. In what the model passes to a tool they are text."""

CARRIES_TEXT: Final = frozenset({"logprobs", "token_ids", "prompt_logprobs", "prompt_token_ids"})
"""Members that carry the text a second time, as tokens. They are left out of replies that rules may change."""

OF_THE_REPLY: Final = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "timings", "prompt_progress"}
)
"""Members of an event or of a plain reply that are no text of the answer."""

THOUGHT_FIRST: Final = ("reasoning_content", "reasoning")
"""Members that a model writes before the others, wherever they stand in a document."""

MAX_DEPTH: Final = 32
"""Lists and objects inside each other that are looked into."""

_VALUE: Final = re.compile(rb'\s*+:\s*+("(?:[^"\\]|\\.)*+")', re.DOTALL)
_PROBE: Final = "\x01"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class TooDeep(Exception):
    """A choice has more than `MAX_DEPTH` lists and objects inside each other."""


class ReplyText(NamedTuple):
    """One text of a choice, and where it stands."""

    container: Any
    """The object or list that has it."""
    key: Any
    path: Path

    @property
    def value(self) -> str:
        """The text as it stands there now."""
        found: str = self.container[self.key]
        return found

    @value.setter
    def value(self, text: str) -> None:
        self.container[self.key] = text


def texts(part: Any, path: Path = ()) -> Iterator[ReplyText]:
    """The texts of a choice that are not empty, what the model thought first.

    Raises:
        TooDeep: see there.
    """
    if len(path) > MAX_DEPTH:
        raise TooDeep
    for key, step in _members(part):
        value = part[key]
        if isinstance(value, str):
            if value and (key not in IDENTIFIERS or _is_written(path, key)) and not is_sound(path, key):
                yield ReplyText(part, key, (*path, step))
        elif value and isinstance(value, dict | list) and key not in CARRIES_TEXT:
            yield from texts(value, (*path, step))


CALL_TEXTS: Final = frozenset({"arguments", "input"})
"""Members of a call with what the model passes to the tool."""


def calls(part: dict[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """The calls of tools in a choice that have a name: the path of the function, its name, and what is passed to it."""
    for member in ("delta", "message"):
        inner = part.get(member)
        if not isinstance(inner, dict):
            continue
        given = inner.get("tool_calls")
        named: list[tuple[Path, Any]] = [((member, "function_call"), inner.get("function_call"))]
        for at, call in enumerate(given if isinstance(given, list) else ()):
            if isinstance(call, dict):
                named += [((member, "tool_calls", _place(call, at), name), call.get(name)) for name in ("function", "custom")]
        for path, function in named:
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name:
                passed = next((function[key] for key in ("arguments", "input") if isinstance(function.get(key), str)), "")
                yield path, name, passed


_CALLED: Final = frozenset({"function", "custom", "function_call"})
"""Members that hold the name of a tool that is called, and what is passed to it."""


def _is_written(path: Path, key: object) -> bool:
    """Whether a member that is an identifier elsewhere has been written by the model: it is the name of the tool that it calls, or stands
    in arguments that are an object."""
    if key == "name" and _names_tool(path):
        return True
    return not CALL_TEXTS.isdisjoint([step for step in path if isinstance(step, str)]) and direction_of(path) == "tool_arguments"


def _names_tool(path: Path) -> bool:
    return bool(path) and path[-1] in _CALLED and direction_of(path) == "tool_arguments"


def _members(part: Any) -> list[tuple[Any, Step]]:
    if isinstance(part, list):
        return [(at, _place(one, at)) for at, one in enumerate(part)]
    names = list(part)
    if not part.keys().isdisjoint(THOUGHT_FIRST):
        names.sort(key=lambda name: name not in THOUGHT_FIRST)
    return [(name, name) for name in names]


def _place(member: Any, at: int) -> Step:
    index = member.get("index") if isinstance(member, dict) else None
    return OwnIndex(index) if isinstance(index, int) else at


def is_sound(path: Path, key: object) -> bool:
    """Whether a member is the sound of an answer, which nobody can read."""
    return key == "data" and path[-1:] == ("audio",)


def direction_of(path: Path) -> Direction:
    """What a text is to guard rules."""
    return "tool_arguments" if "tool_calls" in path or "function_call" in path else "output"


def is_whole(path: Path) -> bool:
    """Whether a text comes in one piece, so that the next one at its path is another text."""
    return "annotations" in path or (path[-1] == "name" and _names_tool(path[:-1]))


def place(part: Any, path: Path, text: str, kind: object) -> None:
    """Add to the text at a path of a choice, which is made where it is not there.

    Args:
        kind: the `type` of the object that has the text; None for none.
    """
    for step, following in pairwise(path):
        part = _stepped(part, step, {} if isinstance(following, str) else [])
    last = path[-1]
    if isinstance(part, list):
        part.append(text)
        return
    part[last] = (part.get(last) or "") + text
    if kind is not None:
        part.setdefault("type", kind)


def _stepped(part: Any, step: Step, empty: Any) -> Any:
    """The member at a step, made where it is not there."""
    if isinstance(step, str):
        if not isinstance(part.get(step), type(empty)):
            part[step] = empty
        return part[step]
    if isinstance(step, OwnIndex):
        found = next((one for one in part if isinstance(one, dict) and one.get("index") == step.at), None)
        if found is None:
            found = {"index": step.at}
            part.append(found)
        return found
    if step < len(part) and isinstance(part[step], type(empty)):
        return part[step]
    part.append(empty)
    return empty


def says(part: Any) -> bool:
    """Whether anything stands in a part of an event beside empty members, the places of choices and calls, and roles."""
    if isinstance(part, dict):
        return any(says(value) for name, value in part.items() if name not in ("index", "role", "type", "object"))
    if isinstance(part, list):
        return any(map(says, part))
    return part is not None and part != ""


def without_tokens(part: dict[str, Any]) -> bool:
    """Leave out what carries a text a second time, of a reply or of a choice; returns whether there was anything."""
    found = [name for name in CARRIES_TEXT.intersection(part) if part[name] is not None]
    for name in found:
        del part[name]
    changed = bool(found)
    for member in ("delta", "message"):
        inner = part.get(member)
        if isinstance(inner, dict):
            changed |= without_tokens(inner)
            sound = inner.get("audio")
            if isinstance(sound, dict) and sound.pop("data", None) is not None:
                changed = True
    return changed


def framed(payload: bytes, text: ReplyText, piece: str) -> tuple[bytes, bytes] | None:
    """What stands before and behind a text in an event with one choice: with any other JSON string between them, the event is the same but
    for this text. None where the bytes of the text are not found for certain.

    Args:
        piece: the text as it came.
    """
    if not isinstance(text.key, str):
        return None
    name = b'"%b"' % text.key.encode()
    if payload.count(name) != 1:
        return None
    found = _VALUE.match(payload, payload.index(name) + len(name))
    if found is None:
        return None
    head, tail = payload[: found.start(1)], payload[found.end(1) :]
    try:
        if msgspec.json.decode(found[1]) != piece:
            return None
        probed = [one.path for one in texts(_decode(head + msgspec.json.encode(_PROBE) + tail)["choices"][0]) if one.value == _PROBE]
    except msgspec.DecodeError:
        return None
    return (head, tail) if probed == [text.path] else None
