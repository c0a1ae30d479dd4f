"""LoRA adapters, pinned by digest: those of `tidegate.yaml` and those that are registered here, and the grants of tenants."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.adapters import RegisteredAdapter
from domain.strict import Strict
from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import CHANGE_ERRORS, POST_ERRORS, READ_ERRORS, Asking, Changing, Names, Posting
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, etag_of
from gateway.admin.routes.tenants import TenantName
from gateway.fleet.adapters import AdapterRegistration
from tenancy.accounts import Tenant

router = APIRouter(route_class=GuardedRoute, tags=["Adapters"])

PoolPath = Annotated[str, Path(max_length=64, description="The pool's name.")]
AdapterPath = Annotated[str, Path(max_length=64, description="The adapter's name in policies and grants.")]


class AdapterListed(BaseModel):
    """One adapter."""

    pool: str
    name: str = Field(description="The adapter's name in policies and grants.")
    digest: str = Field(description="SHA-256 of the adapter's files.")
    path: str = Field(description="The adapter's folder on the engines' machines.")
    source: Literal["static", "registered"] = Field(description="`static`: tidegate.yaml, `registered`: the admin API.")


class AdapterList(BaseModel):
    """Every adapter."""

    items: list[AdapterListed]


class Granted(Strict):
    """Adapters of a tenant; null leaves it to the levels above and the policy."""

    loras: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=1000)] | None


class Grants(Strict):
    """Adapters to grant."""

    loras: Names | None = Field(description="Names of adapters; null leaves the choice to the levels above and the policy, [] grants none.")


@router.get("/adapters", response_model=AdapterList, responses=READ_ERRORS, summary="List adapters")
async def list_all(call: Asking) -> Response:
    """Show every adapter of the settings, then every registered one; `tidegate lora list` says where they are loaded. Of two with one name
    and pool that of the settings counts."""
    async with call.parts.registered_adapters() as store:
        registered = await store.load()
    items = [_listed(adapter, "static") for adapter in call.parts.adapters] + [_listed(adapter, "registered") for adapter in registered]
    return answer(200, {"items": items})


@router.post("/adapters", status_code=201, response_model=AdapterListed, responses=POST_ERRORS, summary="Register an adapter")
async def register(call: Posting, registration: AdapterRegistration) -> Response:
    """Register an adapter with every gateway on the database: models of policies that name it answer within 5 s."""
    registry = call.parts.adapter_registry
    adapter = await registry.checked(registration)

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        await registry.register(adapter, books.adapters)
        return Done(201, "adapter.register", _target(adapter), _listed(adapter, "registered"), after=registration.model_dump())

    return await call.change(work)


@router.delete("/adapters/{pool}/{name}", status_code=204, responses=POST_ERRORS, summary="Delete a registered adapter")
async def delete(call: Changing, pool: PoolPath, name: AdapterPath) -> Response:
    """Delete a registration: models of policies that name the adapter answer 503 within 5 s. A registration is never changed, so no ETag is
    asked for; running requests end as they would have, and engines keep the adapter until its slot is needed."""
    registry = call.parts.adapter_registry

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        before = [adapter for adapter in await books.adapters.load() if (adapter.pool, adapter.name) == (pool, name)]
        await registry.remove(pool, name, books.adapters)
        return Done(204, "adapter.delete", f"adapter/{pool}/{name}", before=_listed(before[0], "registered"))

    return await call.change(work)


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
    async with call.parts.registered_adapters() as store:
        known = {adapter.name for adapter in (*call.parts.adapters, *await store.load())}
    if unknown := sorted(set(body.loras or ()) - known):
        message = f"loras: there is no adapter {unknown[0][:64]!r}; GET /admin/v1/adapters lists those there are."
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


def _listed(adapter: RegisteredAdapter, source: str) -> dict[str, str]:
    return {**msgspec.structs.asdict(adapter), "source": source}


def _target(adapter: RegisteredAdapter) -> str:
    return f"adapter/{adapter.pool}/{adapter.name}"


def _shown(tenant: Tenant) -> dict[str, Any]:
    loras = tenant.rights.loras
    return {"loras": None if loras is None else sorted(loras)}
