"""Ratings of answers: what callers and the judge said, joined to the requests of the same tenant."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.identity import TenantId
from gateway.admin.access import CONTENT_READERS
from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking, Moment, PageQuery, decode_cursor, page_of
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import not_found
from tenancy.feedback import FeedbackQuery, RatedRequest

router = APIRouter(route_class=GuardedRoute, tags=["Feedback"])


class RatingShown(BaseModel):
    """One rating of one request."""

    request_id: str = Field(description="The gateway's own id of the request (`x-tidegate-request-id`).")
    tenant: str
    source: str = Field(description="`caller`, or `judge`.")
    at_unix: float
    rating: str = Field(description="`up` or `down`.")
    score: int | None = Field(description="The judge's score, 1 to 5; null of a caller.")
    label: str
    comment: str | None = Field(description="The caller's comment; null for roles that may not read content.")
    key: str = Field(description="The key that gave it; empty for the judge.")
    model: str = Field(description="The model of the tenant's request under this id; empty where the ledger has no such request.")
    pool: str
    project: str
    outcome: str


class RatingsPage(BaseModel):
    """Ratings, the newest first."""

    items: list[RatingShown]
    next_cursor: str | None


class RatingsQuery(PageQuery):
    """The ratings to show."""

    tenant: str = Field(default="", max_length=63, description="Only those of this tenant.")
    request_id: str = Field(default="", max_length=64, description="Only those of this request.")
    rating: Literal["", "up", "down"] = Field(default="", description="Only those with this rating.")
    source: Literal["", "caller", "judge"] = Field(default="", description="Only those of callers, or of the judge.")
    label: str = Field(default="", max_length=64, description="Only those with this label.")
    since_unix: Moment = Field(default=0.0, description="Only those given at this moment or later, in seconds since the epoch.")


@router.get("/feedback", response_model=RatingsPage, responses=READ_ERRORS, summary="How answers were rated, newest first")
async def ratings(call: Asking, query: Annotated[RatingsQuery, Query()]) -> Response:
    """Show ratings; a tenant-admin sees those of his tenant. Comments are shown to owners, and to admins of the tenant."""
    if call.tenant is not None and query.tenant not in ("", call.tenant):
        raise not_found()
    tenant = call.tenant or TenantId(query.tenant) or None
    wanted = FeedbackQuery(tenant, query.request_id, query.rating, query.source, query.label, query.since_unix)
    found = await call.parts.feedback.page(wanted, decode_cursor(query.cursor, tuple[float, str, str]), query.limit + 1)
    with_comments = bool(call.roles & CONTENT_READERS)
    return answer(200, page_of(found, query.limit, lambda rated: _shown(rated, with_comments), _place))


def _place(rated: RatedRequest) -> tuple[float, str, str]:
    return rated.feedback.at_unix, rated.feedback.request_id, rated.feedback.source


def _shown(rated: RatedRequest, with_comments: bool) -> dict[str, object]:
    given = rated.feedback
    same = {name: getattr(given, name) for name in ("request_id", "tenant", "source", "at_unix", "rating", "score", "label")}
    asked = {name: getattr(rated, name) for name in ("model", "pool", "project", "outcome")}
    return {**same, "comment": given.comment if with_comments else None, "key": given.key_id, **asked}
