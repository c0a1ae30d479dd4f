"""The queues of the pools: who waits, what the next request would meet, and what was refused."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.priority import WORDS
from domain.strict import Strict
from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem
from gateway.queue.refusals import REFUSALS
from gateway.telemetry.families import QUEUE_REFUSED

router = APIRouter(route_class=GuardedRoute, tags=["Queues"])

USUAL_TOKENS = 500
MAX_TOKENS = 10_000_000


class ProspectShown(BaseModel):
    """What the next request of a tenant and class would meet."""

    tenant: str = Field(description="Empty for a tenant with nothing waiting.")
    priority: str
    waiting: int = Field(description="Requests that wait now: those of the tenant, or where `tenant` is empty those of all tenants.")
    waits: int = Field(description="Workers in which the request would have to wait; in the others it would go at once.")
    least_wait_s: float = Field(description="The predicted wait in the worker with the shortest one; 0 for none, and while unknown.")
    most_wait_s: float = Field(description="The same in the worker with the longest one.")
    may_wait_s: float = Field(description="The longest wait that the tenant's policy or the class allows.")
    refused: dict[str, int] = Field(description="Workers that would refuse the request, by reason (docs/reference/metrics.md).")


class QueueShown(BaseModel):
    """The queues of one pool in all workers."""

    pool: str
    workers: int
    unreached: int = Field(description="Workers that reach no backend of the pool.")
    tokens_per_s: float = Field(description="How fast the queues drain, in tokens per second; 0 while unknown.")
    prospects: list[ProspectShown] = Field(description="For each class, and for each tenant that waits.")


class QueuesShown(BaseModel):
    """The queues."""

    tokens: int
    pools: list[QueueShown]


class QueuesQuery(Strict):
    """The supposed request."""

    tokens: int = Field(
        default=USUAL_TOKENS, strict=False, ge=1, le=MAX_TOKENS, description="Its prompt tokens that no backend has in its cache."
    )


class RefusalsShown(BaseModel):
    """Requests of one pool and class whose wait ended without a backend, or did not begin."""

    pool: str
    priority: str
    reasons: dict[str, int] = Field(description="The reasons that occurred, as in `tidegate_queue_refused_total`, with their counts.")


class AllRefusalsShown(BaseModel):
    """Refusals since the workers started."""

    refusals: list[RefusalsShown]


@router.get("/queues", response_model=QueuesShown, responses=READ_ERRORS, summary="What the next request would meet")
async def queues(call: Asking, query: Annotated[QueuesQuery, Query()]) -> Response:
    """Show, for each pool, who waits by class and tenant, and the predicted wait of the next request. Nothing is sent or counted."""
    asking = call.parts.queues
    seen = await asking.outlook(query.tokens) if asking is not None else None
    if seen is None:
        raise AdminProblem(503, "no_worker", "No worker tells of its queues: none is ready. Try again.", headers=RETRY)
    return answer(200, {"tokens": query.tokens, "pools": msgspec.to_builtins(seen)})


@router.get("/queues/refusals", response_model=AllRefusalsShown, responses=READ_ERRORS, summary="What the queues refused, by reason")
async def refusals(call: Asking) -> Response:
    """Show how many requests were refused by the queues or left them unserved since the workers started, by pool, class and reason."""
    gateway = call.parts.gateway
    sums: dict[tuple[str, ...], list[float]] = {}
    for worker in await gateway.workers() if gateway is not None else ():
        for labels, cell in worker.metrics.families.get(QUEUE_REFUSED.name, ()) if worker.metrics is not None else ():
            into = sums.setdefault(tuple(labels), [0.0] * len(cell))
            for at, value in enumerate(cell):
                into[at] += value
    order = {word: at for at, word in enumerate(WORDS)}
    shown = [
        RefusalsShown(
            pool=pool, priority=priority, reasons={word: int(count) for word, count in zip(REFUSALS, cell, strict=False) if count}
        )
        for (pool, priority), cell in sorted(sums.items(), key=lambda item: (item[0][0], order.get(item[0][1], len(order))))
    ]
    return answer(200, AllRefusalsShown(refusals=shown).model_dump())
