"""A kept document as a reply: whole, or as a stream cut anew. Pure.

The pieces of a stream end on edges of grapheme clusters, so that a client which draws each piece never shows half of a character. The usage
is that of the answer when it was made, with its whole prompt marked as cached.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import regex

from domain.ask import Endpoint
from domain.usage import Usage
from gateway.answers.documents import OF_ONE_REPLY, TEXTS

PIECE_CHARS: Final = 24
"""Characters of a piece, at least, but for the last one; about six tokens."""
CHARS_PER_TOKEN: Final = 4
"""For the pace of a replay, which need not be exact."""

_graphemes = regex.compile(r"\X")
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def usage_shown(usage: Usage) -> dict[str, Any]:
    """The usage of a replayed answer as a caller sees it."""
    shown: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.prompt_tokens},
    }
    if usage.reasoning_tokens:
        shown["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return shown


def plain_reply(document: bytes, reply_id: str, created: int, usage: Usage) -> bytes:
    """The body of a plain reply."""
    members = _decode_members(document)
    members["id"], members["created"] = msgspec.Raw(_encode(reply_id)), msgspec.Raw(b"%d" % created)
    members["usage"] = msgspec.Raw(_encode(usage_shown(usage)))
    return _encode(members)


def stream_events(
    endpoint: Endpoint, document: bytes, reply_id: str, created: int, usage: Usage, *, include_usage: bool
) -> Iterator[tuple[int, bytes]]:
    """The events of a streamed reply, in order: how many characters of the answer an event carries, and its bytes."""
    whole = _decode(document)
    for name in OF_ONE_REPLY:
        whole.pop(name, None)
    choices = whole.pop("choices")
    if endpoint.has_messages:
        whole["object"] = "chat.completion.chunk"
    base = {"id": reply_id, "created": created, **whole}

    def event(choice: dict[str, Any]) -> bytes:
        return b"data: " + _encode({**base, "choices": [choice]}) + b"\n\n"

    for choice in choices:
        index = choice["index"]
        parts = _deltas(choice["message"]) if endpoint.has_messages else _texts(choice["text"])
        for chars, part in parts:
            yield chars, event({"index": index, **part, "finish_reason": None})
        end = {name: value for name, value in choice.items() if name not in ("message", "text", "index")}
        yield 0, event({"index": index, **({"delta": {}} if endpoint.has_messages else {"text": ""}), **end})
    if include_usage:
        yield 0, b"data: " + _encode({**base, "choices": [], "usage": usage_shown(usage)}) + b"\n\n"
    yield 0, b"data: [DONE]\n\n"


def _deltas(message: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    yield 0, {"delta": {"role": message.get("role") or "assistant", "content": ""}}
    for name in TEXTS:
        for piece in pieces(message.get(name) or ""):
            yield len(piece), {"delta": {name: piece}}
    rest = {
        name: value for name, value in message.items() if name not in TEXTS and name not in ("role", "tool_calls") and value is not None
    }
    if rest:
        yield 0, {"delta": rest}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield len(call["function"]["arguments"]), {"delta": {"tool_calls": [{"index": index, **call}]}}


def _texts(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for piece in pieces(text):
        yield len(piece), {"text": piece}


def pieces(text: str) -> Iterator[str]:
    """A text in pieces of `PIECE_CHARS` characters or a few more, cut on edges of grapheme clusters."""
    at = 0
    while at < len(text):
        end = at + PIECE_CHARS
        if end >= len(text):
            yield text[at:]
            return
        # ASCII other than a line break joins with nothing but what may follow it
        if not (text[end].isascii() and text[end - 1].isascii()) or text[end] == "\n":
            end = _edge_from(text, at, end)
        yield text[at:end]
        at = end


def _edge_from(text: str, at: int, end: int) -> int:
    """The first edge of a grapheme cluster at or behind `end`, seen from the edge `at`."""
    edge = at
    for match in _graphemes.finditer(text, at):
        edge = match.end()
        if edge >= end:
            break
    return edge
