"""How many backends each pool should have, with the figures that say so."""

from math import ceil
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.membership import Role
from domain.strict import Strict
from gateway.admin.call import answer
from gateway.admin.describe import READ_ERRORS, Asking
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem
from gateway.telemetry.scaling_gauges import PoolScale
from routing.forecast import schedule

UNASKED: Final = "the pool has no section scale"
UNASKED_ROLE: Final = "the pool's scale_roles has no section {}"

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
    """One pool, or its engines of one role where they compute prompts for each other."""

    pool: str
    role: Role = Field(description="`both`: engines that serve whole requests.")
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


class HourShown(BaseModel):
    """One hour of the day."""

    hour: int = Field(description="0 to 23, on the clock of `zone`.")
    days: int = Field(description="Days on which the load of this hour is known.")
    load: float = Field(description="Backends that the busiest ten minutes of the hour fill, at the quantile of `predict` over days.")
    most: float = Field(description="The same on the busiest day.")
    engines: int = Field(description="Engines for `load`, with headroom, within `min` and `max` of the pool.")


class ScheduledShown(BaseModel):
    """So many engines between two times of the day; the lead of `predict` is in the start."""

    start: str = Field(description="HH:MM, on the clock of `zone`.")
    end: str
    engines: int


class HoursQuery(Strict):
    """Whose hours."""

    role: Role = Field(default="both", description="Of engines that compute prompts for each other: `prefill` or `decode`.")


class HoursShown(BaseModel):
    """The hours of a day, and a schedule that follows from them."""

    pool: str
    role: Role
    zone: str
    hours: list[HourShown]
    min: int | None = Field(description="Engines of the quietest hour; null until every hour of the day is known.")
    max: int = Field(description="Engines for the busiest ten minutes that there were, within `max` of the pool.")
    schedule: list[ScheduledShown] = Field(description="When more than `min` are needed; empty until every hour of the day is known.")


@router.get("/scaling/{pool}/hours", response_model=HoursShown, responses=READ_ERRORS, summary="A pool's load by hour of the day")
async def scaling_hours(call: Asking, pool: str, asked: Annotated[HoursQuery, Query()]) -> Response:
    """Show what each hour of the day needed, and when how many engines should be there, for autoscalers that go by the clock."""
    own, forecasts = call.parts.scaling, call.parts.forecasts
    scale = own.bounds(pool, asked.role) if own is not None else None
    found = forecasts.hours(pool, asked.role) if forecasts is not None else None
    if scale is None or found is None:
        message = f"No pool {pool!r} with {asked.role} engines has a section predict in scale or scale_roles; without one no past is read."
        raise AdminProblem(404, "not_found", message)
    predict, loads = found

    def engines(load: float) -> int:
        return min(max(ceil(load / (1 - scale.headroom) - 1e-9), scale.min), scale.max)

    hours = [
        HourShown(hour=one.hour, days=one.days, load=round(one.load, 2), most=round(one.most, 2), engines=engines(one.load))
        for one in loads
    ]
    whole = len(hours) == 24
    times = schedule([one.engines for one in hours], predict.lead_s) if whole else []
    shown = HoursShown(
        pool=pool,
        role=asked.role,
        zone=predict.zone,
        hours=hours,
        min=min(one.engines for one in hours) if whole else None,
        max=engines(max((one.most for one in loads), default=0.0)),
        schedule=[ScheduledShown(start=one.start, end=one.end, engines=one.engines) for one in times],
    )
    return answer(200, shown.model_dump())


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
        role=load.role,
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
        why=(UNASKED if load.role == "both" else UNASKED_ROLE.format(load.role)) if wanted is None else wanted.why,
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
