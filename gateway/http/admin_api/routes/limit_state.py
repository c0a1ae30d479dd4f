"""The current state of limits: used, held and remaining amounts, as the shared counters have them."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.identity import TenantId
from gateway.http.admin_api.call import Call, answer
from gateway.http.admin_api.describing import READ_ERRORS, Asking
from gateway.http.admin_api.guard import GuardedRoute
from gateway.http.admin_api.pages import PageQuery, decode_cursor, encode_cursor
from gateway.http.admin_api.problem import Problem, not_found
from gateway.http.admin_api.routes.limits import id_of
from tenancy.accounts import LimitRecord
from tenancy.directory import GLOBAL_TAG
from tenancy.directory_ports import DirectoryChange
from tenancy.grant import digest_of_label
from tenancy.hold import LimitUsage
from tenancy.limits import Group, Level, LimitLine, line_of

router = APIRouter(route_class=GuardedRoute, tags=["Limits"])

TAGS: Final = {"organisation": "org/", "model": "model/", "global": GLOBAL_TAG, "tenant": ""}


class StateQuery(PageQuery):
    """Whose limits."""

    level: Literal["global", "model", "organisation", "tenant"] = Field(default="tenant", description="`tenant` has all below it too.")
    name: str = Field(default="", max_length=256, description="Of the tenant, organisation or model.")
    user: str | None = Field(default=None, max_length=512, description="An end user; without one, limits per user are left out.")


class LimitState(BaseModel):
    """How one limit stands."""

    id: str
    meter: str
    window: str
    amount: int = Field(description="The threshold in force.")
    used: int = Field(description="Settled and held.")
    held: int = Field(description="Of requests under way.")
    remaining: int
    reset_s: float = Field(description="Seconds until all of it is there again; 0 when it is.")


class LimitStates(BaseModel):
    """How limits stand, by id."""

    items: list[LimitState]
    next_cursor: str | None


@router.get("/limits/state", response_model=LimitStates, responses=READ_ERRORS, summary="How limits stand now")
async def state(call: Asking, query: Annotated[StateQuery, Query()]) -> Response:
    """Show how the limits of one tenant, organisation or model, or of the gateway, stand."""
    if call.tenant is not None and (query.level, query.name) != ("tenant", call.tenant):
        raise not_found()
    if bool(query.name) is (query.level == "global"):
        raise Problem(400, "invalid_value", "name: the name of a tenant, organisation or model is needed, and of nothing else.", "name")
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await _records(directory, query, after)
    shown = records[: query.limit]
    more = len(records) > query.limit
    label = "" if query.user is None else digest_of_label(query.user)
    lines = tuple(line for record in shown if (line := _line(call, record, label)) is not None)
    states = await call.parts.limit_states(Group(f"{TAGS[query.level]}{query.name}", lines)) if lines else []
    return answer(200, {"items": list(map(_shown, states)), "next_cursor": encode_cursor(id_of(shown[-1].limit)) if more else None})


async def _records(directory: DirectoryChange, query: StateQuery, after: str) -> list[LimitRecord]:
    if query.level == "tenant":
        owner = TenantId(query.name)
        await directory.tenants.get(owner, owner)
        return await directory.limits.page(owner, after, query.limit + 1)
    # limits of one scope are neighbours: their ids begin with the scope
    records = await directory.limits.page(None, after or f"{query.level}:{query.name}:", query.limit + 1)
    return [record for record in records if (record.limit.scope.level.value, record.limit.scope.name) == (query.level, query.name)]


def _line(call: Call, record: LimitRecord, label: str) -> LimitLine | None:
    limit = record.limit
    if limit.scope.level is not Level.USER:
        return line_of(limit, call.parts.wall())
    return line_of(limit, call.parts.wall(), label) if label else None


def _shown(state: LimitUsage) -> dict[str, Any]:
    limit = state.line.limit
    return {
        "id": id_of(limit),
        "meter": limit.meter.name.lower(),
        "window": limit.window.value,
        "amount": state.line.amount,
        "used": state.used,
        "held": state.held,
        "remaining": state.remaining,
        "reset_s": state.reset_us / 1e6,
    }
