"""Error replies of the admin port, in OpenAI's shape, so that one parser of errors serves both ports."""

from starlette.responses import JSONResponse


def error_reply(
    status: int, message: str, code: str | None, headers: dict[str, str] | None = None, param: str | None = None
) -> JSONResponse:
    """The complete error reply; `param` names the field, header or parameter that is wrong."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status, headers)
