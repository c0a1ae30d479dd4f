"""What tests of the Responses API share: a translation with counted ids and a still clock, chats' streams, and the events of a Response."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.http.responses import ResponsesTranslation
from gateway.http.responses.request import ResponseAsk, fields_of, translated

NOW = 1_700_000_000
MODEL = "qwen"
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 8,
    "total_tokens": 28,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
CUSTOM = {"type": "custom", "name": "patch"}

_event = TypeAdapter[Any](ResponseStreamEvent)


def translation(**fields: object) -> ResponsesTranslation:
    """One whose request is done; `fields` are those of the request beyond the model and the input."""
    made = ResponsesTranslation(lambda: NOW, map("{:032x}".format, itertools.count(1)).__next__)
    made.request(json.dumps({"model": "m", "input": "hi", **fields}).encode())
    return made


def chat_for(**fields: object) -> dict[str, Any]:
    """The chat of a request."""
    made = ResponsesTranslation(lambda: NOW, lambda: "0")
    chat: dict[str, Any] = json.loads(made.request(json.dumps({"model": "m", **fields}).encode()))
    return chat


def chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **choice: object) -> dict[str, Any]:
    """An event of a chat's stream."""
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason, **choice}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices}


def call(index: int, arguments: str, name: str = "", call_id: str = "") -> dict[str, Any]:
    """An event with a piece of a call."""
    head = {"id": call_id, "type": "function"} if call_id else {}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return chunk({"tool_calls": [{"index": index, **head, "function": function}]})


def usage_chunk(usage: object = None) -> dict[str, Any]:
    """The event with the usage."""
    return {**chunk(), "choices": [], "usage": usage or USAGE}


def sse(*chunks: dict[str, Any], done: bool = True) -> bytes:
    """The bytes of a chat's stream."""
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in chunks) + b"data: [DONE]\n\n" * done


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a Response; each is checked against the official client's models, its name against its type."""
    return list(_events(data))


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    assert data.endswith(b"\n\n") or not data
    for block in data.split(b"\n\n")[:-1]:
        if block.startswith(b":"):
            continue
        name, payload = block.split(b"\n")
        event: dict[str, Any] = json.loads(payload.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        _event.validate_python(event, strict=True)
        yield event


def response(data: bytes) -> dict[str, Any]:
    """A plain Response, checked against the official client's model."""
    found: dict[str, Any] = json.loads(data)
    Response.model_validate_json(data, strict=True)
    return found


def plain_chat(message: dict[str, Any], finish_reason: str = "stop", **choice: object) -> bytes:
    """The body of a chat's plain reply."""
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason, **choice}]
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices, "usage": USAGE}).encode()


def asked_of(body: bytes) -> ResponseAsk:
    """The request that a body holds, which continues none."""
    return translated(fields_of(body), len(body))
