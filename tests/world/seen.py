"""What a caller made of a reply: events, text, and whether the reply says of itself that it is whole."""

from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass
class Seen:
    """A streamed or plain reply as its caller understands it."""

    texts: dict[int, str] = field(default_factory=dict)
    """By choice."""
    tokens: int = 0
    """Events with text."""
    finished: dict[int, str] = field(default_factory=dict)
    done: int = 0
    """How many `[DONE]`."""
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    model: str = ""
    wrong: list[str] = field(default_factory=list)
    """What may never be in a reply."""


def understand(status: int, body: bytes, *, stream: bool, whole: bool) -> Seen:
    """Read a reply, or what came of it."""
    seen = Seen()
    if status != 200:
        if body and whole:
            _error(seen, body)
    elif stream:
        *events, rest = body.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                _event(seen, event[6:])
            elif not event.startswith(b":"):
                seen.wrong.append(f"no event: {event[:60]!r}")
        if rest and whole:
            seen.wrong.append(f"an unfinished event at the end: {rest[:60]!r}")
    elif body and whole:
        _plain(seen, body)
    return seen


def _error(seen: Seen, body: bytes) -> None:
    try:
        seen.error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        seen.wrong.append(f"an error that is none: {body[:80]!r}")


def _event(seen: Seen, payload: bytes) -> None:
    if seen.error is not None or seen.done:
        seen.wrong.append(f"after the end: {payload[:60]!r}")
    if payload == b"[DONE]":
        seen.done += 1
        return
    try:
        document = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        seen.wrong.append(f"no JSON: {payload[:60]!r}")
        return
    if "error" in document:
        seen.error = document["error"]
        return
    seen.model = document.get("model", seen.model)
    seen.usage = document.get("usage") or seen.usage
    for choice in document["choices"]:
        text = choice["delta"].get("content")
        index = choice["index"]
        if index in seen.finished:
            seen.wrong.append(f"text of choice {index} after its end")
        if text:
            seen.texts[index] = seen.texts.get(index, "") + text
            seen.tokens += 1
        if choice.get("finish_reason"):
            seen.finished[index] = choice["finish_reason"]


def _plain(seen: Seen, body: bytes) -> None:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        seen.wrong.append(f"no JSON: {body[:60]!r}")
        return
    seen.model = document.get("model", "")
    seen.usage = document.get("usage")
    for choice in document["choices"]:
        seen.texts[choice["index"]] = choice["message"]["content"]
        seen.finished[choice["index"]] = choice["finish_reason"]
