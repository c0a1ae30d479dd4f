"""A whole reply as one document: the plain reply. The members that differ each time are replaced when it is given again. Pure.

Plain and streamed replies of one answer make one document, so one entry of the cache serves both kinds of requests. A reply with anything
that cannot be put together from its events and taken apart again makes no document, and is not kept.
"""

from typing import Any, Final

import msgspec

from backends.sse import EventSplitter, EventTooLarge
from cache.eligible import FINISH, FORM, LENGTH, TOOLS
from domain.ask import Endpoint

TEXTS: Final = ("reasoning_content", "reasoning", "content", "refusal")
"""Members of a message that a stream sends in pieces, in the order in which engines send them."""

OF_ONE_REPLY: Final = ("id", "created", "usage")
"""Members of a reply that belong to that reply alone."""

_ENDS: Final = frozenset({"stop"})
_TOOL_CALLS: Final = frozenset({"tool_calls", "function_call"})
_LAST_SAID: Final = frozenset({"stop_reason", "matched_stop"})
"""Members of a choice that say why it ended: the last value counts."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class _Unknown(Exception):
    """A part of the reply that cannot be replayed."""


class NotKept(Exception):
    """The reply may not be kept; `reason` is one of `cache.eligible.NOT_KEPT`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Said(msgspec.Struct, gc=False):
    """The parts of a message that decide."""

    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None
    audio: dict[str, msgspec.Raw] | None = None
    content: str | None = None


class _Ended(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    message: _Said | None = None
    text: str | None = None


class _Whole(msgspec.Struct, gc=False):
    choices: list[_Ended] = []


_decode_whole = msgspec.json.Decoder(_Whole).decode


def document_of(endpoint: Endpoint, reply: bytes, *, stream: bool, tools: bool) -> bytes:
    """The document of a whole reply: a plain one as it is, and the plain one that a stream amounts to.

    Raises:
        NotKept: its choices did not all end by themselves, it calls tools and `tools` is False, or it holds something that cannot be
            replayed.
    """
    try:
        document = _encode(_assembled(endpoint, reply)) if stream else reply
        choices = _decode_whole(document).choices
    except (_Unknown, EventTooLarge, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, KeyError, AttributeError):
        raise NotKept(FORM) from None
    reasons = [_why_not(choice, tools=tools) for choice in choices] or [FORM]
    if reason := next(filter(None, reasons), ""):
        raise NotKept(reason)
    return document


def whole_reply(endpoint: Endpoint, reply: bytes) -> dict[str, Any]:
    """The plain reply that a whole streamed one amounts to, log probabilities included. Raises ValueError where it amounts to none."""
    try:
        return _assembled(endpoint, reply, logprobs=True)
    except (
        _Unknown,
        EventTooLarge,
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        raise ValueError(f"no whole reply: {type(error).__name__}") from None


def _why_not(choice: _Ended, *, tools: bool) -> str:
    """Why an answer with this choice is not kept; empty where it may be."""
    message, ended = choice.message, choice.finish_reason
    calls = ended in _TOOL_CALLS or (message is not None and bool(message.tool_calls or message.function_call))
    if calls and not tools:
        return TOOLS
    if ended not in _ENDS and ended not in _TOOL_CALLS:
        return LENGTH if ended == "length" else FINISH
    return FORM if (choice.text is None if message is None else message.audio) else ""


def text_of(document: bytes) -> str:
    """The text of the first choice of a document's answer, without what the model thought before it."""
    choice = _decode_whole(document).choices[0]
    return choice.text or "" if choice.message is None else choice.message.content or ""


def _assembled(endpoint: Endpoint, reply: bytes, *, logprobs: bool = False) -> dict[str, Any]:
    """The plain reply that a streamed one amounts to; with `logprobs`, one that cannot be streamed again."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for payload in EventSplitter().feed(reply):
        if payload.strip() == b"[DONE]":
            break
        event = _decode(payload)
        for name, value in event.items():
            if name != "choices" and (value is not None or name not in whole):
                whole[name] = value
        for part in event.get("choices") or ():
            index = part["index"]
            choice = choices.get(index)
            if choice is None:
                choice = choices[index] = {"index": index, "message": {}} if endpoint.has_messages else {"index": index, "text": ""}
            if logprobs and part.get("logprobs") is not None:
                _add_logprobs(choice, part.pop("logprobs"))
            _add(choice, part)
    if endpoint.has_messages:
        whole["object"] = "chat.completion"
        for choice in choices.values():
            choice["message"].setdefault("role", "assistant")
            choice["message"].setdefault("content", None)
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add what an event says of a choice."""
    for name, value in part.items():
        if name == "index" or value is None:
            continue
        if name == "delta":
            _add_delta(choice["message"], value)
        elif name == "text":
            choice["text"] += value
        elif name == "finish_reason" or name in _LAST_SAID:
            choice[name] = value
        else:
            raise _Unknown(name)


def _add_logprobs(choice: dict[str, Any], said: dict[str, Any]) -> None:
    """Add the log probabilities of an event's tokens: lists by kind of text."""
    known = choice.setdefault("logprobs", {})
    for name, value in said.items():
        known[name] = [*(known.get(name) or ()), *value] if type(value) is list else known.get(name)


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name in TEXTS:
            message[name] = (message.get(name) or "") + value
        elif name == "role":
            message[name] = value
        elif name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for call in value:
                _add_call(calls, call)
        elif value != [] and value != {}:
            raise _Unknown(name)


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a piece of a tool call: the first one has its id and name, all have a piece of the arguments."""
    index = part["index"]
    if index == len(calls):
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    for name, value in part.items():
        if name == "function":
            for member, text in value.items():
                if member not in ("name", "arguments"):
                    raise _Unknown(member)
                call["function"][member] += text or ""
        elif name in ("id", "type"):
            call[name] = value or call.get(name)
        elif name != "index":
            raise _Unknown(name)
