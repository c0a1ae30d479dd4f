"""Faults in the shape of Anthropic's API, so that its official clients raise the right exception and retry the right requests."""

from typing import Final

import msgspec

from domain.faults import Fault, Kind
from gateway.http.faults import Rendered, render

TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The type of an error by its status; other statuses below 500 are `invalid_request_error`, other ones `api_error`."""

BUSY: Final = frozenset({Kind.OVERLOADED, Kind.ENGINE_BUSY})
"""Faults that this API answers with 529, a status of its own for a service with too much to do."""

TOO_LONG: Final = "prompt is too long: "
"""The beginning of the vendor's own message, by which agents know that they have to shorten the conversation."""


class _MessagesError(msgspec.Struct):
    type: str
    message: str


class _MessagesErrorBody(msgspec.Struct, tag="error"):
    error: _MessagesError
    request_id: str


def render_refusal(fault: Fault, request_id: str) -> Rendered:
    """The error reply to a request of whose answer no byte is out; its head is that of `gateway.http.faults.render`.

    Raises:
        ValueError: the kind is CLIENT_GONE.
    """
    usual = render(fault, request_id)
    status = 529 if fault.kind in BUSY else usual.status
    return Rendered(status, usual.headers, _body(fault, status, request_id))


def render_broken(fault: Fault, request_id: str) -> bytes:
    """The event that ends a broken stream.

    Raises:
        ValueError: the kind is CLIENT_GONE.
    """
    status = 529 if fault.kind in BUSY else render(fault, request_id).status
    return b"event: error\ndata: %b\n\n" % _body(fault, status, request_id)


def _body(fault: Fault, status: int, request_id: str) -> bytes:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = TOO_LONG + fault.message if fault.kind is Kind.CONTEXT_TOO_LONG else fault.message
    return msgspec.json.encode(_MessagesErrorBody(_MessagesError(kind, message), request_id))
