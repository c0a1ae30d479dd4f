"""The route of budget alerts: which thresholds of limits were reached, and whether their messages have arrived."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from tenancy.alerts import BudgetAlert

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
    """Show budget alerts of the last 400 days."""
    found = await call.parts.alerts.newest(query.limit, query.of)
    return answer(200, {"items": [_shown(alert) for alert in found]})


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
