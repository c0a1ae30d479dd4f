"""Projects: divisions of a tenant with keys of their own."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from domain.identity import ProjectId
from gateway.admin.access import may_grant
from gateway.admin.call import AdminCall, Done, Entropy, Transactions, answer
from gateway.admin.describe import (
    CHANGE_ERRORS,
    POST_ERRORS,
    READ_ERRORS,
    AccountBody,
    Asking,
    Changing,
    NewProject,
    PageQuery,
    Posting,
    ProjectShown,
    account_shown,
    decode_cursor,
    page_of,
)
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem, etag_of
from gateway.admin.routes.tenants import TenantName
from tenancy.accounts import Project
from tenancy.directory_ports import DirectoryChange, room_for_project

router = APIRouter(route_class=GuardedRoute, tags=["Projects"])

ProjectName = Annotated[str, Path(max_length=63)]

KEYS_AT_ONCE: Final = 1000
"""Keys that are read at once when a project is disabled."""


class ProjectPage(BaseModel):
    """Projects by name."""

    items: list[ProjectShown]
    next_cursor: str | None


@router.get("/tenants/{tenant}/projects", response_model=ProjectPage, responses=READ_ERRORS, summary="List a tenant's projects")
async def list_all(call: Asking, tenant: TenantName, query: Annotated[PageQuery, Query()]) -> Response:
    """Show the projects of a tenant by name."""
    after = decode_cursor(query.cursor, str) or ""
    async with call.parts.reading() as directory:
        records = await directory.projects.page(call.tenant, call.own(tenant), after, query.limit + 1)
    return answer(200, page_of(records, query.limit, account_shown, lambda record: record.name))


@router.post("/tenants/{tenant}/projects", status_code=201, response_model=ProjectShown, responses=POST_ERRORS, summary="Make a project")
async def create(call: Posting, tenant: TenantName, body: NewProject) -> Response:
    """Make a project."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        owner = call.own(tenant)
        name = ProjectId(body.name)
        wish = Project(owner, name, body.label, body.disabled, body.rights.rights(), call.parts.wall())
        await books.directory.tenants.get(call.tenant, owner)
        await room_for_project(books.directory, owner, call.parts.bounds)
        shown = account_shown(await books.directory.projects.create(call.tenant, wish))
        return Done(201, "project.create", f"tenant/{tenant}/project/{name}", shown, tenant=tenant, after=shown)

    return await call.change(work)


@router.get("/tenants/{tenant}/projects/{project}", response_model=ProjectShown, responses=READ_ERRORS, summary="Show a project")
async def get(call: Asking, tenant: TenantName, project: ProjectName) -> Response:
    """Show one project, with its ETag."""
    async with call.parts.reading() as directory:
        shown = account_shown(await directory.projects.get(call.tenant, call.own(tenant), ProjectId(project)))
    return answer(200, shown, etag_of(shown))


@router.put("/tenants/{tenant}/projects/{project}", response_model=ProjectShown, responses=CHANGE_ERRORS, summary="Change a project")
async def put(call: Changing, tenant: TenantName, project: ProjectName, body: AccountBody) -> Response:
    """Replace what is said of a project. A caller cannot disable a project with a key whose roles the caller may not give away."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.projects.get(call.tenant, call.own(tenant), ProjectId(project))
        before = account_shown(record)
        call.check_match(before)
        if body.disabled and not record.disabled:
            await _check_keys_inside(call, books.directory, record)
        changed = msgspec.structs.replace(record, label=body.label, disabled=body.disabled, rights=body.rights.rights())
        shown = account_shown(await books.directory.projects.update(call.tenant, changed))
        return Done(200, "project.change", f"tenant/{tenant}/project/{project}", shown, tenant=tenant, before=before, after=shown)

    return await call.change(work)


@router.delete("/tenants/{tenant}/projects/{project}", status_code=204, responses=CHANGE_ERRORS, summary="Remove a project")
async def delete(call: Changing, tenant: TenantName, project: ProjectName) -> Response:
    """Remove a project whose keys are all revoked, with its keys and limits."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.projects.get(call.tenant, call.own(tenant), ProjectId(project))
        before = account_shown(record)
        call.check_match(before)
        await books.directory.projects.delete(call.tenant, record.tenant, record.name, record.version)
        return Done(204, "project.delete", f"tenant/{tenant}/project/{project}", tenant=tenant, before=before)

    return await call.change(work)


async def _check_keys_inside(call: AdminCall, directory: DirectoryChange, project: Project) -> None:
    """Raises Problem where disabling the project would lock out a key that the caller may not revoke."""
    after = ""
    now = call.parts.wall()
    while records := await directory.keys.page(project.tenant, after, KEYS_AT_ONCE):
        for record in records:
            ended = record.revoked_unix is not None or (record.expires_unix is not None and record.expires_unix <= now)
            if record.project == project.name and not ended and not may_grant(call.roles, record.roles):
                message = (
                    f"disabled: the project has the key {record.id} with roles that you may not give away ("
                    f"{', '.join(sorted(role.value for role in record.roles))}), and disabling the project would lock that key out. "
                    "Disable the project's other keys, or ask an admin."
                )
                raise AdminProblem(403, "forbidden", message, "disabled")
        after = records[-1].id
