"""What-if simulations: compare routing policies on a trace and a modelled fleet, without a request to any engine."""

from typing import Any

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
    return answer(202, msgspec.structs.asdict(_desk(call).start(body, call.principal.actor)))


@router.post("/simulations/cancel", response_model=SimulationShown, responses=POST_ERRORS, summary="Cancel the simulation")
async def cancel(call: Posting) -> Response:
    """End the running simulation, whoever started it."""
    return answer(200, msgspec.structs.asdict(await _desk(call).cancel()))


def _desk(call: AdminCall) -> Simulations:
    if call.parts.simulations is None:
        raise AdminProblem(503, "no_supervisor", "This admin port belongs to no running gateway.")
    return call.parts.simulations
