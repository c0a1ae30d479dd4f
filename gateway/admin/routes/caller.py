"""The caller as the API sees him: his name, roles and tenant."""

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute

router = APIRouter(route_class=GuardedRoute, tags=["API"])


class CallerShown(BaseModel):
    """The caller."""

    actor: str = Field(description="The caller's name in the audit.")
    roles: list[str]
    tenant: str | None = Field(description="The tenant of the caller's key; none for the bootstrap token.")


@router.get("/self", response_model=CallerShown, responses=READ_ERRORS, summary="Who the caller is")
async def self_(call: Asking) -> Response:
    """Show the caller's name and roles."""
    principal = call.principal
    return answer(200, {"actor": principal.actor, "roles": sorted(role.value for role in principal.roles), "tenant": principal.tenant})
