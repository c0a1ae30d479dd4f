"""The admin API as an application of its own, mounted under `/admin/v1`: its routes, its error replies, and the check of the RBAC table."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from domain.mistakes import words
from domain.model_revisions import RevisionsFull, RevisionTaken
from domain.rollouts import RolloutsFull, RolloutTaken
from gateway.admin.access import RouteKey, TableError, check_table
from gateway.admin.call import Parts
from gateway.admin.describe import READ_ERRORS, Asking, document
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import CHANGED, NOT_FOUND, RETRY, AdminProblem, error_reply, sentence
from gateway.admin.routes import ROUTERS
from gateway.docs_links import linked
from gateway.fleet.registry import FleetRefusal
from policies.rollout.progress import NotNow
from tenancy.alerts import AlertsAway
from tenancy.directory_ports import AlreadyExists, Conflict, NoRoom, NotFound, StillInUse
from tenancy.feedback import FeedbackAway
from tenancy.journal import JournalAway, TooManyRemembered
from tenancy.ports import CountersAway
from tenancy.request_log import RequestLogAway
from tenancy.usage import LedgerAway

PREFIX: Final = "/admin/v1"

STORE_AWAY: Final = "The database or its audit cannot be used now; nothing was changed. Try again; the cause is in the log."
STORE_ERRORS: Final[tuple[tuple[type[Exception], int, str, str], ...]] = (
    # the message does not repeat the name: it must equal the answer for a resource of another tenant
    (NotFound, 404, "not_found", NOT_FOUND),
    (AlreadyExists, 409, "already_exists", "The {0}."),
    (StillInUse, 409, "in_use", "It cannot be removed: {0}."),
    (Conflict, 412, "precondition_failed", CHANGED),
    (LedgerAway, 503, "store_unavailable", "The ledger cannot be asked now. Try again."),
    (FeedbackAway, 503, "store_unavailable", "The database cannot be asked now. Try again."),
    (AlertsAway, 503, "store_unavailable", "The database cannot be asked now. Try again."),
    (RequestLogAway, 503, "store_unavailable", "The request log cannot be asked now. Try again."),
    (CountersAway, 503, "counters_unavailable", "The counters cannot be asked now: {0}."),
    (RevisionTaken, 409, "already_exists", "The {0}."),
    (RevisionsFull, 409, "too_many", "{0}."),
    (NoRoom, 409, "too_many", "The {0}."),
    (RolloutTaken, 409, "already_exists", "The {0}."),
    (RolloutsFull, 409, "too_many", "{0}."),
    (NotNow, 409, "not_now", "It cannot be done now: {0}."),
)
"""Error replies by the exception that a store raised: status, code, sentence."""

log = structlog.get_logger("tidegate.admin")

_own_router = APIRouter(route_class=GuardedRoute, tags=["API"])


# The application comes with the request: FastAPI caches thousands of routes' functions for as long as the process lives, and one that held
# its application would keep every application in memory.
@_own_router.get("/openapi.json", name="openapi", responses=READ_ERRORS, summary="This document")
async def _openapi(request: Request, _call: Asking) -> dict[str, Any]:
    return document(request.app, PREFIX)


def create_admin_api(parts: Parts, version: str, routers: Sequence[APIRouter] = ROUTERS) -> FastAPI:
    """The API over its collaborators. Raises TableError as `admin_api_routes` does."""
    api = admin_api_routes(version, routers)
    api.state.parts = parts
    return api


def admin_api_routes(version: str, routers: Sequence[APIRouter] = ROUTERS) -> FastAPI:
    """The API without its collaborators, which the caller puts at `state.parts` before the first request.

    The supervisor makes it before it forks: making it touches 10 MB of what FastAPI and pydantic keep, which the admin process would
    have a copy of afterwards.

    Raises:
        TableError: the routes and the table of roles do not match; the gateway does not start.
    """
    api = FastAPI(title="Tidegate admin API", version=version, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    every = (_own_router, *routers)
    check_table(rows_of(every))
    for router in every:
        api.include_router(router)
    _add_errors(api)
    return api


def rows_of(routers: Iterable[APIRouter]) -> list[RouteKey]:
    """Every method and path template of these routers. Raises TableError for a route without the guard."""
    rows: list[RouteKey] = []
    for route in (route for router in routers for route in router.routes):
        if not isinstance(route, GuardedRoute) or len(route.methods or ()) != 1:
            raise TableError(f"admin API: {getattr(route, 'path', route)} is no guarded route of one method")
        rows += [(method, route.path) for method in route.methods or ()]
    return rows


def _add_errors(api: FastAPI) -> None:
    async def problem(_request: Request, fault: Exception) -> Response:
        assert isinstance(fault, AdminProblem)
        return error_reply(fault.status, linked(str(fault), api.state.parts.docs_url), fault.code, fault.headers, fault.param)

    async def refusal(_request: Request, fault: Exception) -> Response:
        assert isinstance(fault, FleetRefusal)
        return error_reply(fault.status, str(fault), fault.code)

    async def away(_request: Request, fault: Exception) -> Response:
        log.error("the database cannot be used", error=str(fault))
        return error_reply(503, STORE_AWAY, "store_unavailable", RETRY)

    api.add_exception_handler(AdminProblem, problem)
    api.add_exception_handler(FleetRefusal, refusal)

    async def full(_request: Request, fault: Exception) -> Response:
        assert isinstance(fault, TooManyRemembered)
        message = f"{fault}; nothing was changed. Send it without an Idempotency-Key, or later."
        status = 409 if fault.own else 503
        return error_reply(status, message, "idempotency_full", None if fault.own else RETRY, "idempotency-key")

    api.add_exception_handler(JournalAway, away)
    api.add_exception_handler(TooManyRemembered, full)
    for kind, status, code, wording in STORE_ERRORS:
        api.add_exception_handler(kind, partial(_store_error, status, code, wording))
    _add_http_errors(api)


async def _store_error(status: int, code: str, sentence: str, _request: Request, fault: Exception) -> Response:
    return error_reply(status, sentence.format(fault), code, RETRY if status == 503 else None)


def _add_http_errors(api: FastAPI) -> None:
    async def http(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        if fault.status_code == 404:
            return error_reply(404, f"There is no such route; {PREFIX}/openapi.json lists those there are.", "unknown_url")
        if fault.status_code == 405:
            return error_reply(405, f"Method {request.method[:16]} is not allowed here.", None, dict(fault.headers or {}))
        return error_reply(fault.status_code, str(fault.detail), "refused", dict(fault.headers or {}))

    async def invalid(_request: Request, fault: Exception) -> Response:
        assert isinstance(fault, RequestValidationError)
        first = fault.errors()[0]
        place = [str(part) for part in first["loc"][1:]] or ["the body"]
        param = ".".join(place)[:200]
        return error_reply(400, sentence(f"{param}: {words(first, 'an object')}"[:500]), "invalid_value", param=param)

    async def broken(_request: Request, fault: Exception) -> Response:
        log.error("defect in the admin API", exc_info=fault)
        return error_reply(500, "Internal error of the admin port; its cause is in the log.", "internal")

    api.add_exception_handler(HTTPException, http)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(Exception, broken)
