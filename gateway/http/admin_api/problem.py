"""A refusal by the admin API, with the field that is wrong and the remedy."""

from collections.abc import Mapping
from typing import Final

NOT_FOUND: Final = "There is no such thing, or it is not yours to see."
CHANGED: Final = "It was changed since you read it: GET it again, look, and repeat the change."
RETRY: Final = {"retry-after": "5"}
"""Headers of a 503: a store that is away is tried again at least every 5 seconds."""


class Problem(Exception):
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


def not_found() -> Problem:
    """The 404, identical for resources that do not exist and for those of other tenants."""
    return Problem(404, "not_found", NOT_FOUND)
