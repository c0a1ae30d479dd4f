"""The gateway itself: the state of its processes and stores, and the signals that reload and stop it.

A signal goes to the first process, as an operator on the machine would send it: SIGHUP reads the settings anew and replaces the other
processes one by one, SIGUSR2 replaces the first process as well and takes up new code, SIGTERM drains and ends.
"""

import signal
from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import AdminCall, Done, Entropy, GatewayProcesses, Transactions, answer
from gateway.admin.describe import POST_ERRORS, READ_ERRORS, Asking, Posting
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import AdminProblem
from gateway.process.snapshots import Supervision, WorkerSnapshot
from tenancy.journal import JournalAway

router = APIRouter(route_class=GuardedRoute, tags=["Gateway"])

SIGNALS: Final = {"settings": signal.SIGHUP, "code": signal.SIGUSR2}


class WorkerShown(BaseModel):
    """One worker process."""

    index: int
    pid: int
    state: str
    reasons: list[str] = Field(description="What the worker waits for, in words.")
    started_unix: float
    policies: str = Field(description="Digest of its active policies.")


class ProcessShown(BaseModel):
    """One slot of the supervisor: a worker, `admin`, or `store`."""

    name: str
    pid: int | None
    restarts: int = Field(description="Unexpected ends since the start.")
    last_end: str
    refused_replacements: int = Field(description="Replacements that did not start in a reload, so that the old process stayed.")
    last_refusal: str = Field(description="Why the last one of them did not start.")


class StoresShown(BaseModel):
    """The stores."""

    database: Literal["reachable", "away"]
    counters: str = Field(description="Kind of the counter store.")
    counters_shared: bool = Field(description="False while limits are decided without the shared counter store.")
    settlements_waiting: int = Field(description="Settlements that wait for the counter store.")
    usage_dropped: int = Field(description="Usage events that were lost since the workers started, because the disk was full.")


class GatewayShown(BaseModel):
    """The gateway."""

    pid: int = Field(description="The first process, which takes signals.")
    data_port: int
    admin_port: int
    accept_s: float = Field(description="Time for which a gateway that ends still accepts connections.")
    grace_s: float = Field(description="Time that running requests then have.")
    workers: list[WorkerShown]
    processes: list[ProcessShown]
    stores: StoresShown
    unapplied: list[str] = Field(description="Changed settings that no reload takes up, in words; they are among the warnings too.")
    warnings: list[str] = Field(description="Everything that needs a look, in words.")


class Reload(Strict):
    """What to take up."""

    what: Literal["settings", "code"] = Field(
        default="settings",
        description="`settings`: the settings file and the policies, by replacing every process but the first. `code`: the first one too.",
    )


class Signalled(BaseModel):
    """A signal was sent."""

    pid: int
    accept_s: float
    grace_s: float


@router.get("/gateway", response_model=GatewayShown, responses=READ_ERRORS, summary="How the gateway stands")
async def show(call: Asking) -> Response:
    """Show processes, stores, and what needs a look."""
    gateway, supervision = _here(call)
    workers = await gateway.workers()
    try:
        async with call.parts.reading() as directory:
            await directory.organisations.page("", 1)
        reachable = True
    except JournalAway:
        reachable = False
    unapplied = gateway.unapplied()
    shown = GatewayShown(
        pid=supervision.pid,
        data_port=supervision.data_port,
        admin_port=supervision.admin_port,
        accept_s=gateway.accept_s,
        grace_s=gateway.grace_s,
        workers=[
            WorkerShown(
                index=worker.index,
                pid=worker.pid,
                state=worker.state,
                reasons=list(worker.reasons),
                started_unix=worker.started_at,
                policies=worker.policies.digest,
            )
            for worker in workers
        ],
        processes=[
            ProcessShown(
                name=slot.name,
                pid=slot.pid,
                restarts=slot.restarts,
                last_end=slot.last_end,
                refused_replacements=slot.refused_replacements,
                last_refusal=slot.last_refusal,
            )
            for slot in supervision.slots
        ],
        stores=StoresShown(
            database="reachable" if reachable else "away",
            counters=gateway.counters,
            counters_shared=not any(worker.limits is not None and worker.limits.degraded for worker in workers),
            settlements_waiting=sum(worker.limits.undelivered for worker in workers if worker.limits is not None),
            usage_dropped=sum(worker.ledger.dropped for worker in workers if worker.ledger is not None),
        ),
        unapplied=unapplied,
        warnings=[*([] if reachable else ["the database does not answer"]), *unapplied, *warnings(workers, supervision)],
    )
    return answer(200, shown.model_dump())


@router.post("/gateway/reload", status_code=202, response_model=Signalled, responses=POST_ERRORS, summary="Take up settings or code")
async def reload(call: Posting, body: Reload) -> Response:
    """Replace the gateway's processes one by one; no connection is refused, and a process that cannot start leaves the old one.

    Settings and secrets with which no process could start are refused (409), and nothing is replaced.
    """
    gateway, _ = _here(call)
    refusal = await gateway.refusal(new_start=body.what == "code")
    if refusal:
        raise AdminProblem(409, "settings_refused", f"{refusal}\nnothing was reloaded")
    return await _signalled(call, SIGNALS[body.what], f"gateway.reload.{body.what}")


@router.post("/gateway/stop", status_code=202, response_model=Signalled, responses=POST_ERRORS, summary="Drain and end")
async def stop(call: Posting) -> Response:
    """End the gateway as SIGTERM does: no new requests, and those that run may finish within the grace."""
    return await _signalled(call, signal.SIGTERM, "gateway.stop")


WELL: Final = frozenset({"unused", "starting", "ready"})
"""States of similar questions that need no look."""


def warnings(workers: list[WorkerSnapshot], supervision: Supervision) -> list[str]:
    """What needs a look, in words."""
    found = [f"{slot.name} ended {slot.streak} times lately ({slot.last_end})" for slot in supervision.slots if slot.streak]
    for worker in workers:
        name = f"worker {worker.index}"
        if worker.policies.problems:
            found.append(f"{name} refuses the policy files as they are now: {worker.policies.problems[0]}")
        found += [f"{name}: keys of the issuer {one.issuer} cannot be read: {one.trouble}" for one in worker.issuers if one.trouble]
        if worker.limits is not None and worker.limits.degraded:
            found.append(f"{name} decides limits without the counter store since {worker.limits.degraded_s:.0f} s")
        if worker.ledger is not None and worker.ledger.full:
            found.append(f"{name} cannot write usage: the disk or ledger.max_bytes is full")
        if worker.ledger is not None and worker.ledger.dropped:
            found.append(f"{name} lost {worker.ledger.dropped} usage events")
    found += dict.fromkeys(warning for worker in workers for warning in worker.policies.warnings)
    states = [worker.similar.state for worker in workers if worker.similar is not None]
    found += dict.fromkeys(f"similar questions cannot be looked up: {state}" for state in states if state not in WELL)
    if len({worker.policies.digest for worker in workers if worker.state == "ready"}) > 1:
        found.append("the workers have different policies; they were changed a moment ago, or a worker cannot read them")
    return found


def _here(call: AdminCall) -> tuple[GatewayProcesses, Supervision]:
    gateway = call.parts.gateway
    supervision = gateway.supervision() if gateway is not None else None
    if gateway is None or supervision is None:
        raise AdminProblem(503, "no_supervisor", "The state of the first process cannot be read. Try again.")
    return gateway, supervision


async def _signalled(call: AdminCall, number: signal.Signals, action: str) -> Response:
    gateway, supervision = _here(call)

    async def work(_books: Transactions, _entropy: Entropy) -> Done:
        shown = Signalled(pid=supervision.pid, accept_s=gateway.accept_s, grace_s=gateway.grace_s)
        return Done(202, action, f"gateway/{supervision.pid}", shown.model_dump())

    reply = await call.change(work)
    # not before the audit row is written: what ends the gateway must be in the audit, and the answer is on its way before it ends
    gateway.signal(supervision.pid, number)
    return reply
