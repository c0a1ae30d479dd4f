"""The audit: its rows, and the verification of its hash chain."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking, PageQuery, decode_cursor, page_of
from gateway.admin.guard import GuardedRoute
from tenancy.audit import AuditRow

router = APIRouter(route_class=GuardedRoute, tags=["Audit"])


class AuditRowShown(BaseModel):
    """One row of the chain."""

    seq: int
    at_unix_ms: int
    actor: str
    role: str
    address: str
    action: str
    target: str
    tenant: str
    before: dict[str, object] | None
    after: dict[str, object] | None
    hash: str = Field(description="SHA-256 over the previous row's hash and this row, in hexadecimal.")


class AuditPage(BaseModel):
    """Rows, newest first."""

    items: list[AuditRowShown]
    next_cursor: str | None


class AuditVerification(BaseModel):
    """The result of verifying the whole chain."""

    rows: int
    head: str = Field(description="Hash of the last sound row; keep it elsewhere to be able to prove later that nothing was rewritten.")
    broken_at: int | None
    why: str


class AuditQuery(PageQuery):
    """The rows to show."""

    tenant: str | None = Field(default=None, max_length=63, description="Only rows about this tenant.")
    action: str | None = Field(
        default=None,
        max_length=64,
        description="Only rows with this action, such as `key.create`, or with every action that begins so: `key`, `guard`.",
    )


@router.get("/audit", response_model=AuditPage, responses=READ_ERRORS, summary="What was changed, newest first")
async def rows(call: Asking, query: Annotated[AuditQuery, Query()]) -> Response:
    """Show rows of the audit."""
    before = decode_cursor(query.cursor, int)
    audit_rows = await call.parts.audit.newest(before, query.limit + 1, query.tenant, query.action)
    return answer(200, page_of(audit_rows, query.limit, _shown, lambda row: row.seq))


@router.get("/audit/verification", response_model=AuditVerification, responses=READ_ERRORS, summary="Walk the whole chain")
async def verification(call: Asking) -> Response:
    """Verify every row; 100,000 rows take seconds."""
    chain = await call.parts.audit.verify()
    return answer(200, {"rows": chain.rows, "head": chain.head.hex(), "broken_at": chain.broken_at, "why": chain.why})


def _shown(row: AuditRow) -> dict[str, object]:
    entry = row.entry
    return {
        "seq": row.seq,
        "at_unix_ms": row.at_unix_ms,
        **{name: getattr(entry, name) for name in ("actor", "role", "address", "action", "target", "tenant")},
        "before": msgspec.Raw(entry.before.encode() or b"null"),
        "after": msgspec.Raw(entry.after.encode() or b"null"),
        "hash": row.hash.hex(),
    }
