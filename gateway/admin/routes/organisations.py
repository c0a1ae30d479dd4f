"""Organisations: tenants that are limited and billed together."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from gateway.admin.call import Done, Entropy, Transactions, answer
from gateway.admin.describe import (
    CHANGE_ERRORS,
    POST_ERRORS,
    READ_ERRORS,
    AccountBody,
    Asking,
    Changing,
    NewOrganisation,
    OrganisationShown,
    PageQuery,
    Posting,
    account_shown,
    decode_cursor,
    page_of,
)
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import etag_of
from tenancy.accounts import Organisation

router = APIRouter(route_class=GuardedRoute, tags=["Organisations"])

OrganisationName = Annotated[str, Path(max_length=63)]


class OrganisationPage(BaseModel):
    """Organisations by name."""

    items: list[OrganisationShown]
    next_cursor: str | None


@router.get("/organisations", response_model=OrganisationPage, responses=READ_ERRORS, summary="List organisations")
async def list_all(call: Asking, query: Annotated[PageQuery, Query()]) -> Response:
    """Show organisations by name."""
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await directory.organisations.page(after, query.limit + 1)
    return answer(200, page_of(records, query.limit, account_shown, lambda record: record.name))


@router.post("/organisations", status_code=201, response_model=OrganisationShown, responses=POST_ERRORS, summary="Make an organisation")
async def create(call: Posting, body: NewOrganisation) -> Response:
    """Make an organisation."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        created = await books.directory.organisations.create(
            Organisation(body.name, body.label, body.disabled, body.rights.rights(), call.parts.wall())
        )
        shown = account_shown(created)
        return Done(201, "organisation.create", f"organisation/{created.name}", shown, after=shown)

    return await call.change(work)


@router.get("/organisations/{organisation}", response_model=OrganisationShown, responses=READ_ERRORS, summary="Show an organisation")
async def get(call: Asking, organisation: OrganisationName) -> Response:
    """Show one organisation, with its ETag."""
    async with call.parts.reading() as directory:
        shown = account_shown(await directory.organisations.get(organisation))
    return answer(200, shown, etag_of(shown))


@router.put("/organisations/{organisation}", response_model=OrganisationShown, responses=CHANGE_ERRORS, summary="Change an organisation")
async def put(call: Changing, organisation: OrganisationName, body: AccountBody) -> Response:
    """Replace what is said of an organisation."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.organisations.get(organisation)
        before = account_shown(record)
        call.check_match(before)
        updated = await books.directory.organisations.update(
            msgspec.structs.replace(record, label=body.label, disabled=body.disabled, rights=body.rights.rights())
        )
        shown = account_shown(updated)
        return Done(200, "organisation.change", f"organisation/{organisation}", shown, before=before, after=shown)

    return await call.change(work)


@router.delete("/organisations/{organisation}", status_code=204, responses=CHANGE_ERRORS, summary="Remove an organisation")
async def delete(call: Changing, organisation: OrganisationName) -> Response:
    """Remove an organisation without tenants, with its limits."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.organisations.get(organisation)
        before = account_shown(record)
        call.check_match(before)
        await books.directory.organisations.delete(record.name, record.version)
        return Done(204, "organisation.delete", f"organisation/{organisation}", before=before)

    return await call.change(work)
