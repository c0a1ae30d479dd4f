"""The route of budget alerts: which thresholds of limits were reached, and whether their messages have arrived."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import AdminCall, answer
from gateway.admin.describe import MAX_PAGE_RECORDS, READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem
from gateway.admin.routes.limits import id_of
from tenancy.alerts import BudgetAlert
from tenancy.limits import state_key

router = APIRouter(route_class=GuardedRoute, tags=["Limits"])


class BudgetAlertShown(BaseModel):
    """One percentage of one limit that was reached."""

    id: str = Field(description="The id in the message, equal for a message that is posted again.")
    limit: str = Field(description="The limit's id.")
    percent: int
    at_unix: float = Field(description="When the gateway found it.")
    result: str = Field(
        description="`waiting` for its message to be delivered, `sent`, `given_up` after a day, or `superseded`: a higher percentage was "
        "reached at the same look, and was told instead."
    )
    attempts: int = Field(description="How often its message was posted.")
    next_try_unix: float | None = Field(description="When it is posted next; null when it is over.")
    message: dict[str, object] = Field(description="The message as it is posted.")


class BudgetAlerts(BaseModel):
    """Budget alerts, the newest first."""

    items: list[BudgetAlertShown]


class AlertQuery(Strict):
    """The alerts to show."""

    limit: int = Field(default=100, ge=1, le=1000, strict=False, description="How many at most.")
    of: str = Field(default="", max_length=512, description="Only those of limits whose id begins so, as `tenant:acme:`.")


@router.get("/limits/alerts", response_model=BudgetAlerts, responses=READ_ERRORS, summary="Which budgets have reached a threshold")
async def alerts(call: Asking, query: Annotated[AlertQuery, Query()]) -> Response:
    """Show budget alerts of the last 400 days; 404 where neither a limit nor an alert has an id that begins with `of`."""
    found = await call.parts.alerts.newest(query.limit, query.of)
    if query.of and not found:
        await _check_known(call, query.of)
    return answer(200, {"items": [_shown(alert) for alert in found]})


async def _check_known(call: AdminCall, of: str) -> None:
    """Refuses the beginning of an id that no limit has: an empty list would say that its budgets are untouched."""
    after = ""
    async with call.parts.reading() as directory:
        # ids differ from the keys that stores sort by in the name of a meter, so the limits are read in turn
        while records := await directory.limits.page(None, after, MAX_PAGE_RECORDS):
            if any(id_of(record.limit).startswith(of) for record in records):
                return
            last = records[-1].limit
            after = state_key(last.scope, last.meter, last.window)
    remedy = "write level:name:meter:window or the beginning of one, as tenant:acme:"
    raise AdminProblem(
        404, "not_found", f"of: no limit has an id that begins with {of[:128]!a}, and no alert is kept of one; {remedy}.", "of"
    )


def _shown(alert: BudgetAlert) -> dict[str, object]:
    return {
        "id": alert.id,
        "limit": alert.limit_id,
        "percent": alert.percent,
        "at_unix": alert.at_unix,
        "result": alert.result,
        "attempts": alert.attempts,
        "next_try_unix": alert.next_try_unix,
        "message": msgspec.json.decode(alert.body),
    }
