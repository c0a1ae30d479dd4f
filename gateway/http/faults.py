"""Faults on the wire: the one table of how callers see each kind of Fault.

The shape is OpenAI's, and the codes are OpenAI's where OpenAI defines one, so that official clients raise the right exception and retry
the right requests; other kinds have codes of the gateway. A 429 always means a limit of the caller; a shortage of the gateway or its
engines is a 503. A test compares `docs/reference/faults.md` with this table.

`render` writes the headers `retry-after` and `retry-after-ms` from `fault.retry`; `domain/retry_after.py` computes the time.
"""

from math import ceil
from typing import Final

import msgspec

from domain.faults import Fault, Kind

Header = tuple[bytes, bytes]


class WireForm(msgspec.Struct, frozen=True, gc=False):
    """How callers see one kind of Fault: the HTTP status, OpenAI's `type` and `code`."""

    status: int
    type: str
    code: str | None


_CALLER: Final = "invalid_request_error"
_SERVER: Final = "server_error"

ROWS: Final[dict[Kind, WireForm]] = {
    Kind.MALFORMED_HTTP: WireForm(400, _CALLER, None),
    Kind.HEADERS_TOO_LARGE: WireForm(431, _CALLER, None),
    Kind.BODY_TOO_LARGE: WireForm(413, _CALLER, None),
    Kind.UNSUPPORTED_MEDIA: WireForm(415, _CALLER, None),
    Kind.EXPECTATION_FAILED: WireForm(417, _CALLER, None),
    Kind.REQUEST_TIMEOUT: WireForm(408, _CALLER, "request_timeout"),
    Kind.CLIENT_GONE: WireForm(499, _CALLER, "client_closed"),
    Kind.SLOW_READER: WireForm(408, _CALLER, "client_too_slow"),
    Kind.KEY_MISSING: WireForm(401, _CALLER, None),
    Kind.KEY_INVALID: WireForm(401, _CALLER, "invalid_api_key"),
    Kind.KEY_REVOKED: WireForm(401, _CALLER, "invalid_api_key"),
    Kind.UNKNOWN_PATH: WireForm(404, _CALLER, "unknown_url"),
    Kind.METHOD_NOT_ALLOWED: WireForm(405, _CALLER, None),
    Kind.MODEL_NOT_FOUND: WireForm(404, _CALLER, "model_not_found"),
    Kind.PROMPT_NOT_FOUND: WireForm(404, _CALLER, "prompt_not_found"),
    Kind.OBJECT_NOT_FOUND: WireForm(404, _CALLER, None),
    Kind.NOT_PERMITTED: WireForm(403, _CALLER, "insufficient_permissions"),
    Kind.REQUEST_LIMIT: WireForm(429, "requests", "rate_limit_exceeded"),
    Kind.TOKEN_LIMIT: WireForm(429, "tokens", "rate_limit_exceeded"),
    Kind.CONCURRENCY_LIMIT: WireForm(429, "requests", "concurrency_limit_exceeded"),
    Kind.QUOTA_SPENT: WireForm(429, "insufficient_quota", "insufficient_quota"),
    Kind.ADDRESS_LIMIT: WireForm(429, "requests", "rate_limit_exceeded"),
    Kind.EXCEEDS_LIMIT: WireForm(400, _CALLER, "request_exceeds_limit"),
    Kind.INVALID_JSON: WireForm(400, _CALLER, None),
    Kind.INVALID_VALUE: WireForm(400, _CALLER, "invalid_value"),
    Kind.MISSING_PARAMETER: WireForm(400, _CALLER, "missing_required_parameter"),
    Kind.UNSUPPORTED_PARAMETER: WireForm(400, _CALLER, "unsupported_parameter"),
    Kind.CONTEXT_TOO_LONG: WireForm(400, _CALLER, "context_length_exceeded"),
    Kind.REFUSED_BY_ENGINE: WireForm(400, _CALLER, None),
    Kind.CONTENT_FILTERED: WireForm(400, _CALLER, "content_filter"),
    Kind.CRASHES_ENGINES: WireForm(400, _CALLER, "request_crashes_engines"),
    Kind.NOT_CACHED: WireForm(504, _CALLER, "not_cached"),
    Kind.GUARD_BLOCKED: WireForm(400, _CALLER, "content_filter"),
    Kind.OVERLOADED: WireForm(503, _SERVER, "overloaded"),
    Kind.SHUTTING_DOWN: WireForm(503, _SERVER, "server_shutting_down"),
    Kind.DEADLINE_PASSED: WireForm(504, _SERVER, "deadline_exceeded"),
    Kind.INTERNAL: WireForm(500, _SERVER, "internal_error"),
    Kind.QUOTA_UNKNOWN: WireForm(503, _SERVER, "quota_unavailable"),
    Kind.IDENTITY_UNAVAILABLE: WireForm(503, _SERVER, "identity_unavailable"),
    Kind.GUARD_UNAVAILABLE: WireForm(503, _SERVER, "guard_unavailable"),
    Kind.GUARD_LIMIT: WireForm(502, _SERVER, "guard_limit"),
    Kind.STORAGE_UNAVAILABLE: WireForm(503, _SERVER, "storage_unavailable"),
    Kind.NO_BACKEND: WireForm(503, _SERVER, "no_backend"),
    Kind.ENGINE_BUSY: WireForm(503, _SERVER, "overloaded"),
    Kind.CONNECT_FAILED: WireForm(502, _SERVER, "upstream_error"),
    Kind.RESET_BEFORE_REPLY: WireForm(502, _SERVER, "upstream_error"),
    Kind.ENGINE_ERROR: WireForm(502, _SERVER, "upstream_error"),
    Kind.INVALID_REPLY: WireForm(502, _SERVER, "upstream_error"),
    Kind.FIRST_TOKEN_TIMEOUT: WireForm(504, _SERVER, "upstream_timeout"),
    Kind.TOKEN_GAP_TIMEOUT: WireForm(504, _SERVER, "upstream_timeout"),
    Kind.BROKEN_STREAM: WireForm(502, _SERVER, "upstream_error"),
    Kind.ENGINE_ABORTED: WireForm(502, _SERVER, "upstream_error"),
    Kind.WRONG_MODEL: WireForm(502, _SERVER, "upstream_error"),
    Kind.BACKEND_LOST: WireForm(504, _SERVER, "upstream_timeout"),
    Kind.MODEL_NOT_SERVED: WireForm(502, _SERVER, "upstream_error"),
    Kind.LORA_UNAVAILABLE: WireForm(503, _SERVER, "no_backend"),
    Kind.BACKEND_DRAINED: WireForm(502, _SERVER, "upstream_error"),
}
"""One row per kind. The row of `client_gone` is for Records alone: 499 is nginx's status, logged and never sent."""


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """A whole error reply."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


class _Error(msgspec.Struct, omit_defaults=True):
    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str = ""


class _Body(msgspec.Struct):
    error: _Error


def render(fault: Fault, request_id: str) -> Rendered:
    """The error reply to a request of whose answer no byte is out.

    The edge adds `connection` and `content-length`, because it knows whether the request was read to its end.

    Raises:
        ValueError: the kind is CLIENT_GONE, and nobody would read the reply.
    """
    row = _row(fault)
    headers: list[Header] = [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode("ascii")),
        (b"x-should-retry", b"true" if fault.retry.should else b"false"),
    ]
    if fault.retry.should and fault.retry.after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(fault.retry.after_s))))
        headers.append((b"retry-after-ms", b"%d" % ceil(fault.retry.after_s * 1000)))
    if row.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if fault.kind is Kind.METHOD_NOT_ALLOWED and fault.detail:
        headers.append((b"allow", fault.detail.encode("ascii")))
    body = msgspec.json.encode(_Body(_Error(fault.message, row.type, fault.param, fault.code or row.code)))
    return Rendered(row.status, tuple(headers), body)


def render_event(fault: Fault, request_id: str) -> bytes:
    """The SSE event that ends a broken stream. No `[DONE]` follows it, and clients raise on it.

    Raises:
        ValueError: the kind is CLIENT_GONE, as in `render`.
    """
    row = _row(fault)
    error = _Error(fault.message, row.type, fault.param, fault.code or row.code, request_id)
    return b"data: %b\n\n" % msgspec.json.encode(_Body(error))


def _row(fault: Fault) -> WireForm:
    if fault.kind is Kind.CLIENT_GONE:
        raise ValueError("a caller that is gone gets no reply")
    return ROWS[fault.kind]
