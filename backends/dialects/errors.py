"""Engines' error bodies, read once and said again in our words: no path, address, model name or template of theirs gets out.

Shapes seen: `{"error": {…}}` (vLLM, llama.cpp, OpenAI), `{"object": "error", …}` (SGLang, old vLLM), `{"error": "text"}`
(vLLM's key check), `{"detail": …}` (FastAPI), plain text, nothing.
"""

import re
from typing import Final

import msgspec

from domain.faults import NEVER, Fault, Kind, Retry

MAX_QUOTED: Final = 240
"""Characters of an engine's sentence that may be passed on."""

_SOON: Final = Retry(should=True, after_s=1.0)

_CONTEXT: Final = re.compile(r"context length|context size|longer than the model|exceeds the available context|exceed_context_size", re.IGNORECASE)
_OUTPUT: Final = re.compile(r"max_(?:completion_)?tokens.*(?:cannot be greater|too large)", re.IGNORECASE)
_LIMITS: Final = (
    re.compile(r"maximum context length is (\d+)"),
    re.compile(r"context length \((\d+) tokens\)"),
    re.compile(r"available context size \((\d+) tokens\)"),
    re.compile(r"max_model_len=(\d+)"),
    re.compile(r"supports at most (\d+) completion tokens"),
)
_COUNTS: Final = (
    re.compile(r"contains (at least \d+) input tokens"),
    re.compile(r"input \((\d+) tokens\)"),
    re.compile(r"request \((\d+) tokens\)"),
)

_HARMLESS: Final = re.compile(r"[A-Za-z0-9 .,;:!?'\"_=<>()\[\]+-]{1,240}")
_TELLTALE: Final = re.compile(
    r"[\\/{}`]|File \"|Traceback|https?:|\d+\.\d+\.\d+\.\d+|0x[0-9a-f]|\.py\b|validation error|localhost|--[a-z]|\bmodel\b|\badapter\b", re.IGNORECASE
)
"""What an engine's sentence may not hold to be passed on: paths, code, addresses, flags, lists of validation errors, and the names
under which engines know models and adapters."""

_PARAM: Final = re.compile(r"(?:body\.)?([a-z_]{1,40}(?:[.\[\]0-9a-z_]{0,60}))")


class _Inner(msgspec.Struct):
    message: str | None = None
    param: str | None = None


class _Outer(msgspec.Struct):
    error: _Inner | str | None = None
    message: str | None = None
    param: str | None = None
    detail: msgspec.Raw | None = None


def fault_from_reply(status: int, body: bytes) -> Fault:
    """What an engine's refusal means for the caller, as our Fault.

    Args:
        status: the engine's HTTP status, anything but 200.
        body: its body, possibly cut.
    """
    message, param = _read(body)
    # the engine's text stays out of the logs as well: validation errors repeat parts of the prompt
    detail = f"engine answered {status}" + (f" about {shown}" if (shown := _param(param)) else "")
    if status in (429, 503):
        return Fault(Kind.ENGINE_BUSY, "The engines serving this model are busy. Try again shortly.", retry=_SOON, detail=detail)
    if status in (400, 404, 405, 501) and _is_route_error(message):
        return Fault(Kind.UNSUPPORTED_PARAMETER, "This model does not serve this endpoint.", param="model", detail=detail)
    if status in (400, 413, 422):
        return _refused(message, param, detail)
    # 401, 403, unknown model: how we are set up towards our own engines; nothing the caller can mend
    return Fault(Kind.ENGINE_ERROR, "The engine serving this request failed. Try again.", retry=_SOON, detail=detail)


def _read(body: bytes) -> tuple[str, str | None]:
    try:
        outer = msgspec.json.decode(body, type=_Outer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:1000].decode("utf-8", "replace"), None
    inner = outer.error
    if isinstance(inner, _Inner):
        return inner.message or "", inner.param
    return inner or outer.message or (bytes(outer.detail).decode("utf-8", "replace") if outer.detail else ""), outer.param


def _refused(message: str, param: str | None, detail: str) -> Fault:
    limit = next((m[1] for p in _LIMITS if (m := p.search(message))), None)
    if _OUTPUT.search(message):
        at_most = f" This model's context holds {limit} tokens." if limit else ""
        return Fault(Kind.INVALID_VALUE, f"max_tokens is too large for this model.{at_most}", param="max_tokens", detail=detail)
    if _CONTEXT.search(message):
        count = next((m[1] for p in _COUNTS if (m := p.search(message))), None)
        holds = f"This model's maximum context length is {limit} tokens." if limit else "The request is longer than this model's context."
        has = f" The request has {count} tokens." if count else ""
        return Fault(Kind.CONTEXT_TOO_LONG, f"{holds}{has} Shorten the messages or the completion.", param="messages", detail=detail)
    shown = _param(param)
    sentence = message.partition("\n")[0].partition(" (parameter=")[0].strip()
    if _HARMLESS.fullmatch(sentence) and not _TELLTALE.search(sentence):
        return Fault(Kind.REFUSED_BY_ENGINE, sentence, param=shown, retry=NEVER, detail=detail)
    about = f" Check '{shown}'." if shown else ""
    return Fault(Kind.REFUSED_BY_ENGINE, f"The engine serving this model refused the request.{about}", param=shown, detail=detail)


def _param(param: str | None) -> str | None:
    found = _PARAM.fullmatch(param) if param else None
    return found[1] if found else None


def _is_route_error(message: str) -> bool:
    return "Not Found" in message or "Method Not Allowed" in message or "not support" in message or "an embedding model" in message
