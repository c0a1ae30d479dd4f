"""Usage and its cost, by day and by any of the labels; `tidegate usage export` writes whole files."""

import datetime as dt
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking, PageQuery
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, not_found
from tenancy.money import dollars_of
from tenancy.usage import BadCursor, By, Filter, columns

router = APIRouter(route_class=GuardedRoute, tags=["Usage"])

Day = Annotated[dt.date, Field(strict=False)]
Label = Annotated[str, Field(max_length=256, description="Only usage with this value; empty for any.")]


class UsageQuery(PageQuery):
    """The usage to show, and the labels to group it by."""

    by: list[By] = Field(default=["tenant", "model"], max_length=8, description="Repeat it to group by more than one label.")
    first_day: Day | None = Field(default=None, description="First day, UTC; default: no lower bound.")
    last_day: Day | None = Field(default=None, description="Last day, UTC, included; default: no upper bound.")
    organisation: Label = ""
    tenant: Label = ""
    project: Label = ""
    key: Label = ""
    user: Label = ""
    model: Label = ""
    lora: Label = ""


class UsageRow(BaseModel):
    """Sums of one combination of labels."""

    labels: dict[str, str]
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    units: int = Field(description="Weighted tokens.")
    cost_nanousd: int
    audio_seconds: int = Field(description="Seconds of recordings that were transcribed and of speech that was made.")
    audio_bytes: int
    cost_usd: str = Field(description="The same as `cost_nanousd`, in dollars.")


class UsagePage(BaseModel):
    """Usage, sorted by its labels."""

    items: list[UsageRow]
    next_cursor: str | None


@router.get("/usage", response_model=UsagePage, responses=READ_ERRORS, summary="What was used")
async def usage(call: Asking, query: Annotated[UsageQuery, Query()]) -> Response:
    """Show what was used; a tenant-admin sees what his tenant used."""
    if call.tenant is not None and query.tenant not in ("", call.tenant):
        raise not_found()
    filters: dict[str, Any] = {name: getattr(query, name) or None for name in Filter.__struct_fields__}
    filters["tenant"] = call.tenant or filters["tenant"]
    where = Filter(**filters)
    try:
        page = await call.parts.usage.totals(query.by, where, query.cursor, query.limit)
    except BadCursor as error:
        raise AdminProblem(400, "invalid_value", f"cursor: {error}.", "cursor") from None
    names = columns(query.by)
    items = [
        {
            "labels": dict(zip(names, row.labels, strict=True)),
            **msgspec.structs.asdict(row.sums),
            "cost_usd": dollars_of(row.sums.cost_nanousd),
        }
        for row in page.rows
    ]
    return answer(200, {"items": items, "next_cursor": page.next})
