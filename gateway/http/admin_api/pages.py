"""Pagination by cursor: the cursor encodes where the last page ended; callers send it back unread."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import Field

from domain.strict import Strict
from gateway.http.admin_api.problem import Problem

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
NUL: Final = "\0"
"""A character that no name contains and that Postgres accepts in no text."""


class PageQuery(Strict):
    """Which part of a list."""

    # not strict: values of a query string are text
    limit: Annotated[int, Field(strict=False, ge=1, le=MAX_LIMIT)] = Field(default=DEFAULT_LIMIT, description="Most items of a page.")
    cursor: str | None = Field(
        default=None, max_length=1024, description="`next_cursor` of the page before; without it the list begins at its start."
    )


def encode_cursor(place: Any) -> str:
    """The cursor for a position in a list."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode_cursor(cursor: str | None, kind: Any) -> Any:
    """The position that a cursor stands for; None for the start of the list. Raises Problem 400 for a cursor that no page ever gave."""
    if cursor is None:
        return None
    if kind is int:
        kind = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # databases store no larger number
    try:
        place = msgspec.json.decode(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True), type=kind)
        if isinstance(place, str) and NUL in place:
            raise ValueError
        return place
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise Problem(
            400, "invalid_value", "The cursor is none that this list gave; leave it out to begin at the start.", "cursor"
        ) from None


T = TypeVar("T")


def page_of(records: Sequence[T], limit: int, shown: Callable[[T], Any], place: Callable[[T], Any]) -> dict[str, Any]:
    """A page of `limit` records; callers fetch one record more, whose presence means that there is another page."""
    more = encode_cursor(place(records[limit - 1])) if len(records) > limit else None
    return {"items": [shown(record) for record in records[:limit]], "next_cursor": more}
