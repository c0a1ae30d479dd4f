"""OpenAI's requests: body bytes to a checked Ask, and the model list.

`interpret` is the only way from bytes to an Ask. What it hands on is the object it checked, serialised again, without the
model (a backend's dialect writes its own name for it) and without fields that steer engines. Knows no tenant and no backend.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai.chat import CHAT, chat_choices
from gateway.http.openai.checks import Check, refuse, refuse_type
from gateway.http.openai.completions import COMPLETIONS, completions_choices
from gateway.http.openai.controls import asks_for_usage, without_controls
from gateway.http.openai.embeddings import EMBEDDINGS, embeddings_choices
from gateway.http.openai.json_guard import parse_object

MAX_MODEL_CHARS: Final = 256

STREAM_OPTIONS: Final = {"include_usage": True}
"""Engines are always asked for usage: it is what is metered."""


class _Form(msgspec.Struct, frozen=True):
    """What one endpoint takes."""

    checks: Mapping[str, Check]
    required: str
    choices: Callable[[Mapping[str, object]], int]


_FORMS: Final = {
    Endpoint.CHAT: _Form(CHAT, "messages", chat_choices),
    Endpoint.COMPLETIONS: _Form(COMPLETIONS, "prompt", completions_choices),
    Endpoint.EMBEDDINGS: _Form(EMBEDDINGS, "input", embeddings_choices),
}

_encode = msgspec.json.Encoder().encode


def interpret(endpoint: Endpoint, body: bytes) -> Ask:
    """The Ask that `body` makes of `endpoint`.

    Raises:
        Fault: INVALID_JSON, or MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field.
    """
    document = without_controls(parse_object(body))
    model = _checked_model(document)
    form = _FORMS[endpoint]
    find = form.checks.get
    for key, value in document.items():
        if value is not None and (check := find(key)) is not None:
            check(value, key)
    if document.get(form.required) is None:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{form.required}'.", param=form.required)
    stream = document.get("stream") is True
    include_usage = _rewrite_stream_options(document, stream)
    return Ask(
        endpoint,
        model,
        _encode(document),
        stream,
        include_usage,
        form.choices(document),
        len(body),
        _output_cap(document),
        frozenset(document),
    )


def _checked_model(document: dict[str, object]) -> str:
    """Take `model` out of `document`."""
    model = document.pop("model", None)
    if type(model) is not str:
        if model is None:
            raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'model'.", param="model")
        refuse_type("a string", model, "model")
    if not (0 < len(model) <= MAX_MODEL_CHARS and model.isprintable()):
        refuse(f"Invalid value for 'model': it must have 1 to {MAX_MODEL_CHARS} printable characters.", "model")
    return model


def _rewrite_stream_options(document: dict[str, object], stream: bool) -> bool:
    """Have the engine report usage on streams; returns whether the caller asked for it."""
    options = document.get("stream_options")
    if options is not None:
        if type(options) is not dict:
            refuse_type("an object", options, "stream_options")
        if not stream:
            refuse("The 'stream_options' parameter is only allowed when 'stream' is true.", "stream_options")
        wanted = options.get("include_usage")
        if wanted is not None and type(wanted) is not bool:
            refuse_type("a boolean", wanted, "stream_options.include_usage")
    if not stream:
        return False
    document["stream_options"] = STREAM_OPTIONS
    return asks_for_usage(options)


def _output_cap(document: Mapping[str, object]) -> int | None:
    """The caller's cap on output tokens. The two names of it may not disagree: engines differ in which one they follow."""
    cap, newer = document.get("max_tokens"), document.get("max_completion_tokens")
    if cap is not None and newer is not None and cap != newer:
        refuse("Send either 'max_tokens' or 'max_completion_tokens', or the same number in both.", "max_completion_tokens")
    cap = newer if cap is None else cap
    return cap if type(cap) is int else None
