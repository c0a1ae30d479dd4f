"""The dashboards' panels as the console draws them: what they are, and what Prometheus says of each."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.strict import Strict
from gateway.admin.call import AdminCall, answer
from gateway.admin.describe import MAX_UNIX, READ_ERRORS, Asking, Text
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem
from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.panels import CHOICES, Dashboard, Kind, Panel, Unit
from gateway.dashboards.prometheus import MAX_RANGE_S, MIN_RANGE_S, PanelReader, PrometheusAway, Span

router = APIRouter(route_class=GuardedRoute, tags=["Dashboards"])

BOARDS: Final = {board.uid: board for board in DASHBOARDS}
MAX_CHOSEN: Final = 20
"""Values of one variable that are chosen at once; none chosen stands for all."""
USUAL_RANGE_S: Final = 3600.0
NO_PROMETHEUS: Final = (
    "The settings name no Prometheus, so there is nothing to draw: set console.prometheus_url to the address of the Prometheus that reads "
    "this gateway's metrics, and reload the settings (docs/start/prometheus.md)."
)

Chosen = Annotated[list[Text], Field(max_length=MAX_CHOSEN)]
BoardId = Annotated[str, Path(max_length=64, description="`uid` of the dashboard.")]


class QueryShown(BaseModel):
    """One query of a panel."""

    expr: str = Field(description="PromQL with `$__rate_interval` and variables, as in Grafana's dashboards.")
    legend: str = Field(description="The name of each series, with `{{label}}` for a label.")


class ThresholdShown(BaseModel):
    """A bound of a panel's values."""

    value: float
    is_bad: bool = Field(description="Whether values from there on are bad; else they are a warning.")


class PanelShown(BaseModel):
    """One chart."""

    id: str = Field(description="Its name within the dashboard, for its address.")
    title: str
    description: str
    kind: Kind = Field(description="Lines over time, areas on each other, the present value, or a bar for each present value.")
    unit: Unit
    queries: list[QueryShown]
    thresholds: list[ThresholdShown]
    most: float | None = Field(description="The highest value that there is; null for no bound.")
    empty_until: str = Field(description="What has to happen before it shows anything; empty where any request is enough.")


class PanelRowShown(BaseModel):
    """Panels under one heading."""

    title: str
    panels: list[PanelShown]


class DashboardShown(BaseModel):
    """One page of charts."""

    uid: str
    title: str
    description: str
    choices: list[str] = Field(description="The variables that its queries use, of `pool`, `model` and `tenant`.")
    rows: list[PanelRowShown]


class DashboardsShown(BaseModel):
    """The dashboards that `tidegate export-dashboards` writes for Grafana."""

    prometheus: bool = Field(description="Whether the settings name a Prometheus; without one the other routes are a 503.")
    dashboards: list[DashboardShown]


class ChoicesShown(BaseModel):
    """The values of each variable, in order; at most 500 each."""

    choices: dict[str, list[str]]


class SeriesShown(BaseModel):
    """One line, or one present value."""

    label: str
    values: list[float | None] = Field(description="One for each of `times`; null where there is none.")


class PanelDataShown(BaseModel):
    """What a panel shows."""

    times: list[float] = Field(description="Seconds since the epoch; one of them where the panel shows present values.")
    series: list[SeriesShown]
    left_out: int = Field(description="Series beyond the 24 with the largest values.")
    step_s: float


class SpanQuery(Strict):
    """The time to show."""

    range_s: float = Field(
        default=USUAL_RANGE_S, strict=False, ge=MIN_RANGE_S, le=MAX_RANGE_S, allow_inf_nan=False, description="Its length, up to 31 days."
    )
    step_s: float | None = Field(
        default=None, strict=False, ge=0.1, le=MAX_RANGE_S, allow_inf_nan=False, description="Between two points; at most 1,000 points."
    )
    end_unix: float | None = Field(default=None, strict=False, ge=0, le=MAX_UNIX, allow_inf_nan=False, description="Its end; else now.")

    def span(self, reader: PanelReader) -> Span:
        """The time as the reader takes it. Raises AdminProblem 400 for too many points."""
        try:
            return reader.span(self.range_s, self.step_s, self.end_unix)
        except ValueError as error:
            raise AdminProblem(400, "invalid_value", f"step_s: {error}; choose a longer step or a shorter range.", "step_s") from None


class PanelQuery(SpanQuery):
    """The time to show, and the values of variables."""

    pool: Chosen = Field(default=[], description="Only these pools, where the panel's queries have `$pool`; none for all.")
    model: Chosen = Field(default=[], description="Only these models, where the panel's queries have `$model`.")
    tenant: Chosen = Field(default=[], description="Only these tenants, where the panel's queries have `$tenant`.")


@router.get("/dashboards", response_model=DashboardsShown, responses=READ_ERRORS, summary="The dashboards and their panels")
async def show(call: Asking) -> Response:
    """Show what the dashboards consist of: panels with their queries, units and what they wait for."""
    shown = [{**msgspec.to_builtins(board), "choices": board.choices, "rows": _rows(board)} for board in DASHBOARDS]
    return answer(200, {"prometheus": call.parts.charts is not None, "dashboards": shown})


@router.get("/dashboards/{board}/choices", response_model=ChoicesShown, responses=READ_ERRORS, summary="Values of a dashboard's variables")
async def choices(call: Asking, board: BoardId, query: Annotated[SpanQuery, Query()]) -> Response:
    """Ask Prometheus which pools, models and tenants there were, for the variables that the dashboard has."""
    found, reader = _board(board), _reader(call)
    try:
        return answer(200, {"choices": await reader.choices(found, query.span(reader))})
    except PrometheusAway as away:
        raise _away(away) from None


@router.get(
    "/dashboards/{board}/panels/{panel}", response_model=PanelDataShown, responses=READ_ERRORS, summary="What a panel of a dashboard shows"
)
async def panel(
    call: Asking,
    board: BoardId,
    panel: Annotated[str, Path(max_length=128, description="`id` of the panel.")],
    query: Annotated[PanelQuery, Query()],
) -> Response:
    """Ask Prometheus the panel's own queries, within 10 seconds. No other query can be asked over this API."""
    found, reader = _panel(_board(board), panel), _reader(call)
    span = query.span(reader)
    chosen = {name: values for name in CHOICES if (values := getattr(query, name))}
    try:
        return answer(200, msgspec.to_builtins(await reader.panel(found, span, chosen)))
    except PrometheusAway as away:
        raise _away(away) from None


def _rows(board: Dashboard) -> list[dict[str, Any]]:
    return [{"title": row.title, "panels": [{"id": panel.id, **msgspec.to_builtins(panel)} for panel in row.panels]} for row in board.rows]


def _board(uid: str) -> Dashboard:
    board = BOARDS.get(uid)
    if board is None:
        raise AdminProblem(404, "not_found", f"There is no dashboard {uid!r}; there are {', '.join(BOARDS)}.")
    return board


def _panel(board: Dashboard, wanted: str) -> Panel:
    for panel in board.panels:
        if panel.id == wanted:
            return panel
    raise AdminProblem(404, "not_found", f"The dashboard {board.uid} has no panel {wanted!r}; GET /admin/v1/dashboards lists them.")


def _reader(call: AdminCall) -> PanelReader:
    if call.parts.charts is None:
        raise AdminProblem(503, "no_prometheus", NO_PROMETHEUS)
    return call.parts.charts


def _away(away: PrometheusAway) -> AdminProblem:
    message = f"Prometheus {away}. The gateway asks it at console.prometheus_url."
    return AdminProblem(503, "prometheus_unavailable", message, headers=RETRY)
