"""Refusals of the admin API: the error (`AdminProblem`), its reply, and the check of ETags that refuses a change of an unseen state.

`AdminProblem` names the field that is wrong and the remedy. `etag_of` and `check_match` are ETags and If-Match: no caller overwrites a
state that the caller has not seen. `error_reply` has OpenAI's shape, so that one parser of errors serves both ports.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from starlette.responses import JSONResponse

from tenancy.audit import canonical

NOT_FOUND: Final = "There is no such thing, or it is not yours to see."
CHANGED: Final = "It was changed since you read it: GET it again, look, and repeat the change."
RETRY: Final = {"retry-after": "5"}
"""Headers of a 503: a store that is away is tried again at least every 5 seconds."""


class AdminProblem(Exception):
    """Ends a request with an error body.

    Args:
        status: of the HTTP answer.
        code: for programs.
        message: a sentence for people.
        param: the field, header or parameter that is wrong; None when the refusal concerns none.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def not_found() -> AdminProblem:
    """The 404, identical for resources that do not exist and for those of other tenants."""
    return AdminProblem(404, "not_found", NOT_FOUND)


def sentence(text: object) -> str:
    """A message as a sentence: with a full stop, unless it asks something (`did you mean …?`)."""
    written = str(text)
    return written if written.endswith(("?", ".")) else f"{written}."


def etag_of(shown: Any) -> str:
    """The strong entity tag of a shown resource: the same content has the same tag, in every process."""
    return f'"{sha256(canonical(shown).encode()).hexdigest()[:32]}"'


def check_match(if_match: str | None, shown: Any) -> None:
    """Raises Problem 428 without a tag and 412 with an old one."""
    if not if_match:
        raise AdminProblem(
            428, "precondition_required", "Send If-Match with the ETag of what you have seen (GET it first), or If-Match: *.", "if-match"
        )
    tags = [tag.strip() for tag in if_match.split(",")]
    if "*" not in tags and etag_of(shown) not in tags:
        raise AdminProblem(412, "precondition_failed", CHANGED, "if-match")


def error_reply(
    status: int, message: str, code: str | None, headers: dict[str, str] | None = None, param: str | None = None
) -> JSONResponse:
    """The complete error reply; `param` names the field, header or parameter that is wrong."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status, headers)
