"""How many backends each pool should have, with the figures that say so."""

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem
from gateway.telemetry.scaling_gauges import PoolScale

router = APIRouter(route_class=GuardedRoute, tags=["Backends"])


class ScaleFigures(BaseModel):
    """The figures that the recommendation is made of; null where nothing is known."""

    running: int = Field(description="Requests in the engines' batches.")
    waiting: int = Field(description="Requests in the engines' queues.")
    queued: int = Field(description="Requests that wait in the gateway.")
    queue_tokens_per_backend: float | None = Field(description="Uncached prompt tokens that wait for each usable backend.")
    predicted_ttft_p95_s: float | None
    kv_pressure: float | None = Field(description="KV that running and waiting requests take, of that which there is.")
    prefill_busy: float | None = Field(description="Share of the last minute that the engines computed prompts for.")
    goodput_deficit: float | None = Field(description="Share of the last minute's requests that missed their promise.")


class PoolScaleShown(BaseModel):
    """One pool."""

    pool: str
    present: int = Field(description="Backends that do not drain, those that start or are down counted.")
    up: int
    wanted: int | None = Field(description="Backends that are recommended; null for a pool without a section `scale`.")
    needed: float | None = Field(description="Backends that the load of now needs, headroom included and not rounded.")
    busy: float | None = Field(description="Share of the usable backends that the load fills; above 1 it is too much.")
    headroom: float | None
    min: int | None
    max: int | None
    forecast: float | None = Field(
        description="Backends that the load is expected to need when an engine that is asked for now serves, headroom included; "
        "null without `predict`, and where past days do not say it."
    )
    forecast_why: str = Field(description="How much the load is expected to grow, or why nothing is known of it; empty without `predict`.")
    scale_in_in_s: float = Field(description="Seconds until fewer are recommended, if no more are needed until then; 0 for never.")
    why: str
    figures: ScaleFigures


class ScalingShown(BaseModel):
    """Every pool of the settings."""

    pools: list[PoolScaleShown]


@router.get("/scaling", response_model=ScalingShown, responses=READ_ERRORS, summary="How many backends each pool should have")
async def scaling(call: Asking) -> Response:
    """Show, for each pool, how many backends there are, how many are recommended and why."""
    gateway, own = call.parts.gateway, call.parts.scaling
    workers = await gateway.workers() if gateway is not None else []
    if own is None or not workers:
        raise AdminProblem(503, "no_worker", "No worker tells of its backends: none is ready. Try again.", headers=RETRY)
    return answer(200, ScalingShown(pools=[_shown(one) for one in own.look(workers)]).model_dump())


def _shown(one: PoolScale) -> PoolScaleShown:
    load, scale, wanted = one.load, one.scale, one.wanted
    return PoolScaleShown(
        pool=one.pool,
        present=load.backends,
        up=load.up,
        wanted=None if wanted is None else wanted.wanted,
        needed=None if wanted is None else round(wanted.need.backends, 2),
        busy=None if wanted is None else round(wanted.need.busy, 3),
        headroom=None if scale is None else scale.headroom,
        min=None if scale is None else scale.min,
        max=None if scale is None else scale.max,
        forecast=None if wanted is None or wanted.need.forecast is None else round(wanted.need.forecast, 2),
        forecast_why=one.growth.why,
        scale_in_in_s=0.0 if wanted is None else round(wanted.settles_s, 1),
        why="the pool has no section scale" if wanted is None else wanted.why,
        figures=ScaleFigures(
            running=load.running,
            waiting=load.waiting,
            queued=load.queued,
            queue_tokens_per_backend=round(load.queue_tokens / load.up, 1) if load.up else None,
            predicted_ttft_p95_s=load.predicted_s,
            kv_pressure=load.kv_pressure,
            prefill_busy=load.prefilled,
            goodput_deficit=load.deficit,
        ),
    )
