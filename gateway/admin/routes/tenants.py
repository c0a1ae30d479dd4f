"""Tenants: the accounts whose data is isolated from each other."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from domain.identity import TenantId
from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import (
    CHANGE_ERRORS,
    POST_ERRORS,
    READ_ERRORS,
    Asking,
    Changing,
    NewTenant,
    PageQuery,
    Posting,
    TenantBody,
    TenantShown,
    account_shown,
    decode_cursor,
    page_of,
)
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, etag_of
from tenancy.accounts import Tenant
from tenancy.directory_ports import NotFound

router = APIRouter(route_class=GuardedRoute, tags=["Tenants"])

TenantName = Annotated[str, Path(max_length=63)]


class TenantPage(BaseModel):
    """Tenants by name."""

    items: list[TenantShown]
    next_cursor: str | None


@router.get("/tenants", response_model=TenantPage, responses=READ_ERRORS, summary="List tenants")
async def list_all(call: Asking, query: Annotated[PageQuery, Query()]) -> Response:
    """Show tenants by name; a tenant-admin sees his own."""
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await directory.tenants.page(call.tenant, after, query.limit + 1)
    return answer(200, page_of(records, query.limit, account_shown, lambda record: record.name))


@router.post("/tenants", status_code=201, response_model=TenantShown, responses=POST_ERRORS, summary="Make a tenant")
async def create(call: Posting, body: NewTenant) -> Response:
    """Make a tenant, with its project `default`."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        name = TenantId(body.name)
        await _check_organisation(books, body.organisation)
        rights = body.rights.rights()
        wish = Tenant(name, body.organisation, body.label, body.disabled, rights, call.parts.wall())
        shown = account_shown(await books.directory.tenants.create(wish))
        return Done(201, "tenant.create", f"tenant/{name}", shown, tenant=name, after=shown)

    return await call.change(work)


@router.get("/tenants/{tenant}", response_model=TenantShown, responses=READ_ERRORS, summary="Show a tenant")
async def get(call: Asking, tenant: TenantName) -> Response:
    """Show one tenant, with its ETag."""
    name = call.own(tenant)
    async with call.parts.reading() as directory:
        shown = account_shown(await directory.tenants.get(call.tenant, name))
    return answer(200, shown, etag_of(shown))


@router.put("/tenants/{tenant}", response_model=TenantShown, responses=CHANGE_ERRORS, summary="Change a tenant")
async def put(call: Changing, tenant: TenantName, body: TenantBody) -> Response:
    """Replace what is said of a tenant."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.tenants.get(call.tenant, call.own(tenant))
        before = account_shown(record)
        call.check_match(before)
        await _check_organisation(books, body.organisation)
        changed = msgspec.structs.replace(
            record, organisation=body.organisation, label=body.label, disabled=body.disabled, rights=body.rights.rights()
        )
        shown = account_shown(await books.directory.tenants.update(call.tenant, changed))
        return Done(200, "tenant.change", f"tenant/{tenant}", shown, tenant=tenant, before=before, after=shown)

    return await call.change(work)


@router.delete("/tenants/{tenant}", status_code=204, responses=CHANGE_ERRORS, summary="Remove a tenant")
async def delete(call: Changing, tenant: TenantName) -> Response:
    """Remove a tenant whose keys are all revoked, with its projects, keys and limits."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.tenants.get(call.tenant, call.own(tenant))
        before = account_shown(record)
        call.check_match(before)
        await books.directory.tenants.delete(call.tenant, record.name, record.version)
        return Done(204, "tenant.delete", f"tenant/{tenant}", tenant=tenant, before=before)

    return await call.change(work)


async def _check_organisation(books: Transactions, name: str) -> None:
    try:
        await books.directory.organisations.get(name)
    except NotFound:
        raise AdminProblem(400, "unknown_organisation", f"organisation: there is no {name!r}.", "organisation") from None
