"""Backends: register, drain, resume, remove. Listing them needs no role (`GET /backends` beside `/metrics`, outside this API)."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from domain.membership import Owner
from gateway.admin.call import Done, Entropy, Transactions
from gateway.admin.describe import POST_ERRORS, Changing, Posting
from gateway.admin.guard import GuardedRoute
from gateway.fleet.registry import MAX_GRACE_S, Registration

router = APIRouter(route_class=GuardedRoute, tags=["Backends"])

BackendId = Annotated[str, Path(max_length=64, description="The backend's id in metrics, logs and headers.")]

UNTIL: Final = {
    True: "Every gateway on this database drains it, until it is resumed or removed.",
    False: "All workers of this gateway drain it, until it is resumed or the gateway is restarted; other gateways are not told.",
}


class BackendRegistered(BaseModel):
    """A backend that was added."""

    pool: str
    id: str
    url: str
    source: Owner
    state: str


class BackendDraining(BaseModel):
    """A backend that gets no new requests."""

    id: str
    state: str
    grace_s: float
    source: Owner
    message: str


class BackendResumed(BaseModel):
    """A backend that takes requests again."""

    id: str
    state: str
    source: Owner


@router.post("/backends", status_code=201, response_model=BackendRegistered, responses=POST_ERRORS, summary="Register a backend")
async def register(call: Posting, registration: Registration) -> Response:
    """Register a backend with every gateway on the database; it takes requests once a poll finds it right."""
    registry = call.parts.registry
    member = await registry.checked(registration, await call.parts.seen())

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        await registry.register(member, books.members)
        shown = {"pool": member.pool, "id": member.id, "url": member.url, "source": member.owner, "state": "unknown"}
        return Done(201, "backend.register", f"backend/{member.id}", shown, after=registration.model_dump())

    return await call.change(work)


@router.post(
    "/backends/{backend_id}/drain", status_code=202, response_model=BackendDraining, responses=POST_ERRORS, summary="Drain a backend"
)
async def drain(
    call: Posting,
    backend_id: BackendId,
    grace_s: Annotated[
        float | None, Query(ge=0, le=MAX_GRACE_S, allow_inf_nan=False, description="Seconds after which running requests are ended.")
    ] = None,
) -> Response:
    """Give a backend no new requests; what runs on it may finish within the grace."""
    owners = await call.parts.seen()

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        owner, grace, effect = await call.parts.registry.drain(backend_id, grace_s, books.members, owners)
        message = UNTIL[owner == "registered"]
        shown = {"id": backend_id, "state": "draining", "grace_s": grace, "source": owner, "message": message}
        return Done(202, "backend.drain", f"backend/{backend_id}", shown, after={"grace_s": grace, "source": owner}, effect=effect)

    return await call.change(work)


@router.post("/backends/{backend_id}/resume", response_model=BackendResumed, responses=POST_ERRORS, summary="Resume a backend")
async def resume(call: Posting, backend_id: BackendId) -> Response:
    """Let a drained backend take requests again."""
    owners = await call.parts.seen()

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        owner, effect = await call.parts.registry.resume(backend_id, books.members, owners)
        shown = {"id": backend_id, "state": "unknown", "source": owner}
        return Done(200, "backend.resume", f"backend/{backend_id}", shown, effect=effect)

    return await call.change(work)


@router.delete("/backends/{backend_id}", status_code=204, responses=POST_ERRORS, summary="Remove a registered backend")
async def remove(call: Changing, backend_id: BackendId) -> Response:
    """Take a registered backend away: it drains first. Its state is the fleet's and changes by itself, so no ETag is asked for."""
    owners = await call.parts.seen()

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        await call.parts.registry.remove(backend_id, books.members, owners)
        return Done(204, "backend.remove", f"backend/{backend_id}")

    return await call.change(work)
