"""The route of forecasts: what budgets will have spent at the end of their windows (`tenancy.forecast`), from their state and the usage by
day of each one's scope."""

import datetime as dt
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.admin.call import AdminCall, answer
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from gateway.admin.routes.limits import MONEY_SHOWN, ScopeQuery, id_of, limits_of_scope, states_of
from tenancy.forecast import PACE_DAYS, Forecast, first_day_of_pace, forecast, pace_per_day
from tenancy.hold import LimitUsage
from tenancy.limits import Level, Meter, Scope, line_of
from tenancy.money import dollars_of
from tenancy.usage import Filter

router = APIRouter(route_class=GuardedRoute, tags=["Limits"])


class BudgetForecast(BaseModel):
    """What is expected of one limit of the meter `cost_usd`, in nano-dollars and as text in dollars."""

    id: str
    window: str
    zone: str = Field(description="The time zone of the calendar; empty for UTC.")
    amount: int = Field(description="The threshold that is active now.")
    spent: int = Field(description="What counts towards the limit now, without reservations of requests in flight.")
    pace_per_day: int = Field(
        description=f"Spend of the {PACE_DAYS} days before today and of today, divided by the time since then, or since the first day "
        "with spend."
    )
    ends_unix: int | None = Field(description="The end of the window; null for rolling windows and `ever`.")
    expected: int | None = Field(description="`spent`, and the pace until `ends_unix`; for rolling windows the pace for so many days.")
    reached_unix: float | None = Field(description="When the amount is spent at this pace; null where not within the window.")
    amount_usd: str = Field(description=MONEY_SHOWN)
    spent_usd: str
    pace_per_day_usd: str
    expected_usd: str | None


class BudgetForecasts(BaseModel):
    """Forecasts by the limit's id. A page may have fewer of them than `limit`, and none: only limits on money have a forecast."""

    items: list[BudgetForecast]
    next_cursor: str | None


@router.get("/limits/forecast", response_model=BudgetForecasts, responses=READ_ERRORS, summary="What budgets will have spent")
async def forecasts(call: Asking, query: Annotated[ScopeQuery, Query()]) -> Response:
    """Show what the limits on money of one tenant, organisation or model, or of the gateway, will have spent at the end of their windows.
    Limits per end user have no forecast."""
    records, cursor = await limits_of_scope(call, query)
    now = call.parts.wall()
    budgets = [limit for limit in (record.limit for record in records) if limit.meter is Meter.COST_NANOUSD]
    states = await states_of(call, query, [line_of(limit, now) for limit in budgets if limit.scope.level is not Level.USER])
    paces: dict[Scope, int] = {}
    items = []
    for state in states:
        limit = state.line.limit
        if limit.scope not in paces:
            paces[limit.scope] = await _pace(call, limit.scope, now)
        items.append(_shown(state, paces[limit.scope], forecast(limit, state.used - state.held, paces[limit.scope], now)))
    return answer(200, {"items": items, "next_cursor": cursor})


async def _pace(call: AdminCall, scope: Scope, now: float) -> int:
    page = await call.parts.usage.totals(("day",), _usage_of(scope, first_day_of_pace(now)))
    return pace_per_day({dt.date.fromisoformat(row.labels[0]): row.sums.cost_nanousd for row in page.rows}, now)


def _usage_of(scope: Scope, first_day: dt.date) -> Filter:
    """The usage that counts towards limits of a scope."""
    match scope.level:
        case Level.PROJECT:
            tenant, _, project = scope.name.partition("/")
            return Filter(first_day=first_day, tenant=tenant, project=project)
        case Level.GLOBAL:
            return Filter(first_day=first_day)
        case level:
            return msgspec.structs.replace(Filter(first_day=first_day), **{level.value: scope.name})


def _shown(state: LimitUsage, pace: int, expected: Forecast) -> dict[str, Any]:
    limit = state.line.limit
    amounts = {"amount": state.line.amount, "spent": expected.spent, "pace_per_day": pace, "expected": expected.expected}
    return {
        "id": id_of(limit),
        "window": limit.window.value,
        "zone": limit.zone,
        **amounts,
        "ends_unix": expected.ends_unix,
        "reached_unix": expected.reached_unix,
        **{f"{name}_usd": None if amount is None else dollars_of(amount) for name, amount in amounts.items()},
    }
