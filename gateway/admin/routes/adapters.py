"""LoRA adapters: the list of the configured ones, and the grants of tenants. `tidegate.yaml` configures adapters, pinned by digest."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import CHANGE_ERRORS, READ_ERRORS, Asking, Changing, Names
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, etag_of
from gateway.admin.routes.tenants import TenantName
from tenancy.accounts import Tenant

router = APIRouter(route_class=GuardedRoute, tags=["Adapters"])


class AdapterListed(BaseModel):
    """An adapter of the settings."""

    pool: str
    name: str = Field(description="The adapter's name in policies and grants.")
    digest: str = Field(description="SHA-256 of the adapter's files.")


class AdapterList(BaseModel):
    """Every adapter of the settings."""

    items: list[AdapterListed]


class Granted(Strict):
    """Adapters of a tenant; null leaves it to the levels above and the policy."""

    loras: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=1000)] | None


class Grants(Strict):
    """Adapters to grant."""

    loras: Names | None = Field(description="Names of adapters; null leaves the choice to the levels above and the policy, [] grants none.")


@router.get("/adapters", response_model=AdapterList, responses=READ_ERRORS, summary="List adapters")
async def list_all(call: Asking) -> Response:
    """Show every adapter of the settings; `tidegate lora list` says where they are loaded."""
    return answer(200, {"items": call.parts.adapters})


@router.get("/tenants/{tenant}/adapters", response_model=Granted, responses=READ_ERRORS, summary="Which adapters a tenant may use")
async def granted(call: Asking, tenant: TenantName) -> Response:
    """Show the adapters granted to a tenant."""
    name = call.own(tenant)
    async with call.parts.reading() as directory:
        shown = _shown(await directory.tenants.get(call.tenant, name))
    return answer(200, shown, etag_of(shown))


@router.put("/tenants/{tenant}/adapters", response_model=Granted, responses=CHANGE_ERRORS, summary="Grant adapters to a tenant")
async def grant(call: Changing, tenant: TenantName, body: Grants) -> Response:
    """Replace the adapters granted to a tenant."""
    known = {adapter["name"] for adapter in call.parts.adapters}
    if unknown := sorted(set(body.loras or ()) - known):
        message = f"loras: there is no adapter {unknown[0][:64]!r} in the settings; GET /admin/v1/adapters lists those there are."
        raise AdminProblem(400, "unknown_adapter", message, "loras")

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.tenants.get(call.tenant, call.own(tenant))
        before = _shown(record)
        call.check_match(before)
        loras = None if body.loras is None else frozenset(body.loras)
        rights = msgspec.structs.replace(record.rights, loras=loras)
        updated = await books.directory.tenants.update(call.tenant, msgspec.structs.replace(record, rights=rights))
        shown = _shown(updated)
        return Done(200, "adapters.grant", f"tenant/{tenant}", shown, tenant=tenant, before=before, after=shown)

    return await call.change(work)


def _shown(tenant: Tenant) -> dict[str, Any]:
    loras = tenant.rights.loras
    return {"loras": None if loras is None else sorted(loras)}
