"""What-if simulations: compare routing policies on a trace and a modelled fleet, without a request to any engine."""

from typing import Any, Final

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.admin.call import AdminCall, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, Posting
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem
from gateway.admin.simulations import Simulations
from gateway.process.simulation_job import MAX_POLICIES, MAX_REQUESTS, MAX_SEEDS, MAX_SIMULATED, MAX_TRACE_CHARS, SimulationAsked
from policies.routing_choice import NAMES
from routing.simulation.comparison import SHOWN
from routing.simulation.timing import CLASSES
from routing.simulation.workloads import WORKLOADS
from tenancy.request_log import Cursor, RequestFilter

PAGE: Final = 1000
"""Requests that are read from the request log at a time."""

router = APIRouter(route_class=GuardedRoute, tags=["Simulations"])


class SimulationShown(BaseModel):
    """One simulation, running or ended."""

    id: str
    state: str = Field(description="`running`, `done`, `failed` or `cancelled`.")
    by: str = Field(description="The actor who started it.")
    started_unix: float
    ended_unix: float | None
    words: str = Field(description="What is simulated now.")
    done: int = Field(description="Requests that have ended, of all policies and seeds.")
    of: int = Field(description="Requests of all policies and seeds; 0 while the workload is read.")
    error: str = Field(description="Why it failed; empty when it did not.")
    result: dict[str, object] | None = Field(
        description="The comparison, as `tidegate simulate --json` prints it without the figures of single runs; null before its end."
    )


class SimulationsShown(BaseModel):
    """What can be simulated, and the last simulation."""

    workloads: list[str] = Field(description="Made-up workloads.")
    machines: list[str] = Field(description="Classes of model and machine for the engines of the modelled fleet.")
    policies: list[str] = Field(description="Routing policies.")
    figures: dict[str, str] = Field(description="The main figures of a result by name, each with its title.")
    recent: bool = Field(description="Whether the gateway keeps a request log, whose last requests can be replayed.")
    bounds: dict[str, int] = Field(
        description="`requests` of one run, `seeds`, `policies`, `simulated` (all three multiplied) and `trace_chars`, each at most."
    )
    last: SimulationShown | None = Field(description="The running simulation, else the last one since the admin process started.")


@router.get("/simulations", response_model=SimulationsShown, responses=READ_ERRORS, summary="The last what-if simulation")
async def last(call: Asking) -> Response:
    """Show how far the simulation is, or its result, and what can be simulated."""
    found = _desk(call).last
    shown: dict[str, Any] = {
        "workloads": list(WORKLOADS),
        "machines": list(CLASSES),
        "policies": list(NAMES),
        "figures": dict(SHOWN),
        "recent": call.parts.requests is not None,
        "bounds": {
            "requests": MAX_REQUESTS,
            "seeds": MAX_SEEDS,
            "policies": MAX_POLICIES,
            "simulated": MAX_SIMULATED,
            "trace_chars": MAX_TRACE_CHARS,
        },
        "last": None if found is None else msgspec.structs.asdict(found),
    }
    return answer(200, shown)


@router.post("/simulations", status_code=202, response_model=SimulationShown, responses=POST_ERRORS, summary="Start a what-if simulation")
async def start(call: Posting, body: SimulationAsked) -> Response:
    """Replay a trace against a modelled fleet under several routing policies, in a process of the lowest priority. One runs at a time; its
    result takes the place of the last one."""
    desk = _desk(call)
    asked = await _with_recent(call, body) if body.recent else body
    return answer(202, msgspec.structs.asdict(desk.start(asked, call.principal.actor)))


@router.post("/simulations/cancel", response_model=SimulationShown, responses=POST_ERRORS, summary="Cancel the simulation")
async def cancel(call: Posting) -> Response:
    """End the running simulation, whoever started it."""
    return answer(200, msgspec.structs.asdict(await _desk(call).cancel()))


def _desk(call: AdminCall) -> Simulations:
    if call.parts.simulations is None:
        raise AdminProblem(503, "no_supervisor", "This admin port belongs to no running gateway.")
    return call.parts.simulations


async def _with_recent(call: AdminCall, asked: SimulationAsked) -> SimulationAsked:
    """The question with the last requests of the request log as its trace, as many as are asked for and fit."""
    if call.parts.requests is None:
        raise AdminProblem(409, "no_request_log", "This gateway keeps no request log (request_log.enabled). Upload a trace.", "recent")
    found: list[bytes] = []
    left = MAX_TRACE_CHARS
    after: Cursor | None = None
    while len(found) < asked.limit:
        page = await call.parts.requests.page(RequestFilter(), "newest", after, min(PAGE, asked.limit - len(found)))
        for request in page:
            left -= len(request.line) + 1
            if left < 0:
                break
            found.append(request.line)
        if left < 0 or len(page) < PAGE:
            break
        after = page[-1].place
    if not found:
        raise AdminProblem(409, "no_requests", "The request log has no request yet. Send some, or take a made-up workload.", "recent")
    # oldest first, as an access log has them
    return asked.model_copy(update={"recent": False, "trace": b"\n".join(reversed(found)).decode("utf-8", "replace") + "\n"})
