"""How the admin API describes itself: errors, headers and the bearer scheme in its OpenAPI document."""

from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header, Request
from pydantic import BaseModel, Field

from gateway.http.admin_api.call import Call, call_of


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str = Field(description="A sentence for people.")
    type: str = Field(description="`invalid_request_error`, or `server_error` for what is not the caller's doing.")
    param: str | None = Field(description="The field, header or parameter that is wrong.")
    code: str | None = Field(description="For programs.")


class ErrorBody(BaseModel):
    """Every answer from 400 on."""

    error: ErrorDetail


ERROR_DESCRIPTIONS: Final = {
    400: "Something in the request is wrong; `param` names it.",
    401: "No valid admin token or key.",
    403: "The caller's roles do not allow it.",
    404: "There is no such thing, or it belongs to another tenant.",
    409: "It exists already, or something else hangs on it.",
    412: "It was changed since it was read.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "The Idempotency-Key was used for another request.",
    428: "If-Match is missing.",
    503: "The database or the audit cannot be written or read; nothing was changed.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Entries for FastAPI's `responses`."""
    return {status: {"model": ErrorBody, "description": ERROR_DESCRIPTIONS[status]} for status in statuses}


READ_ERRORS: Final = errors(400, 401, 403, 404, 422, 503)
POST_ERRORS: Final = errors(400, 401, 403, 404, 409, 413, 415, 422, 503)
CHANGE_ERRORS: Final = errors(400, 401, 403, 404, 409, 412, 413, 415, 422, 428, 503)


def _posting(
    request: Request,
    _key: Annotated[
        str | None, Header(alias="idempotency-key", description="Any text of your own: the same request with it is done once in 24 h.")
    ] = None,
) -> Call:
    return call_of(request)


def _changing(
    request: Request,
    _etag: Annotated[str | None, Header(alias="if-match", description="The ETag of what you have seen, or `*`; required.")] = None,
) -> Call:
    return call_of(request)


Asking = Annotated[Call, Depends(call_of)]
"""The call of a GET."""
Posting = Annotated[Call, Depends(_posting)]
"""The call of a POST, with its Idempotency-Key."""
Changing = Annotated[Call, Depends(_changing)]
"""The call of a PUT or DELETE, with its If-Match."""


def document(api: FastAPI, prefix: str) -> dict[str, Any]:
    """The OpenAPI document, with the bearer scheme and the path prefix of the API."""
    if "security" not in (openapi := api.openapi()):
        openapi.setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        openapi["security"] = [{"bearer": []}]
        openapi["servers"] = [{"url": prefix}]
    return openapi


def printable(text: str) -> str:
    """The text itself, if it can be shown on one line of a terminal. Raises ValueError for line breaks and control characters."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be printed")
    return text
