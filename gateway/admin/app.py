"""The admin port: probes, metrics, version and the fleet over FastAPI, in a process of its own so that it takes no time from workers.

This module knows workers only through their snapshots (`gateway.process.worker_link`). Changes to keys, limits and policies are left to
`gateway.admin.api`, inference to the data port. `create_admin_app` builds the app alone; `admin_main` is the process that the supervisor
starts.
"""

import asyncio
import os
import platform
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
import uvloop
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from domain.mistakes import words
from gateway.admin import PREFIX, Parts, admin_api_routes
from gateway.admin.access import Authenticator
from gateway.admin.problem import error_reply
from gateway.admin.server import AdminServer
from gateway.alerts.watch import AlertCounts
from gateway.console.files import console_router
from gateway.console.provider_routes import ProviderAccess
from gateway.console.session import ConsoleSessions, SessionSeal
from gateway.fleet.view import clashes_seen, fleet_seen, sources_seen
from gateway.ledger.bookkeeper import BookingState, Bookkeeper
from gateway.process.background import kept_up
from gateway.process.children import settle_memory
from gateway.process.snapshots import Supervision, WorkerSnapshot
from gateway.process.supervisor import WorkerSlot
from gateway.process.worker_link import Totals, collect, not_ready, processes_of, supervision
from gateway.telemetry.exposition import GaugeRows, Scrape, render
from gateway.telemetry.file_gauges import FigureWatch
from gateway.telemetry.headroom import HeadroomWatch
from gateway.telemetry.judge_gauges import AgreementWatch
from gateway.telemetry.processes import uses
from gateway.telemetry.rollout_gauges import RolloutFigures

FLEET_WITHIN_S: Final = 0.5
"""Longest wait for a worker's snapshot; a worker whose loop is silent for longer is not ready to take requests."""
LAST_REQUESTS_S: Final = 0.3
"""How long a replaced process goes on answering the connections that it has accepted."""
NO_STORE: Final = {"cache-control": "no-store"}


class PoolShown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool as `/pools` lists it, with or without backends."""

    name: str
    model: str
    """The model name that requests to its engines carry."""
    dialect: str
    usd_per_hour: float | None = None
    """What an hour of each of its engines costs; None where that is not set."""


class ApiRun(Protocol):
    """The admin API's collaborators, and their background work while this process serves them."""

    @property
    def parts(self) -> Parts:
        """The collaborators of the admin API."""
        ...

    routes: FastAPI | None
    """The routes of the API, made before this process was forked; None where they are not."""
    files: FigureWatch | None
    """The counts of files and batches, for metrics; None where files are switched off."""
    headroom: HeadroomWatch
    """What tenants have left of their limits, for metrics."""
    provider: ProviderAccess | None
    """Signs people in to the console at an identity provider; None where none is configured."""
    agreement: AgreementWatch | None
    """The judge's agreement, for metrics; None where it is not measured."""

    async def run(self) -> None:
        """Keep the snapshot of keys current until cancelled."""
        ...

    def rollouts(self) -> RolloutFigures:
        """The state of the rollouts, for metrics."""
        ...

    def alerts(self) -> AlertCounts | None:
        """What became of budget alerts, for metrics."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Collect(Protocol):
    """Asks every worker for a snapshot; with or without its numbers."""

    def __call__(self, *, with_metrics: bool) -> Awaitable[list[WorkerSnapshot]]:
        """The snapshots of the workers that answered."""
        ...


def create_admin_app(
    collect: Collect,
    *,
    version: str,
    workers: int,
    draining: Callable[[], bool] = lambda: False,
    supervised: Callable[[], Supervision | None] = lambda: None,
    pools: Sequence[PoolShown] = (),
    booking: Callable[[], BookingState | None] = lambda: None,
    api: Parts | None = None,
    routes: FastAPI | None = None,
    rollouts: Callable[[], RolloutFigures | None] = lambda: None,
    alerts: Callable[[], AlertCounts | None] = lambda: None,
    files: Callable[[], Sequence[tuple[str, GaugeRows]]] = lambda: (),
    headroom: Callable[[], Sequence[tuple[str, GaugeRows]]] = lambda: (),
    provider: ProviderAccess | None = None,
    agreement: Callable[[], Sequence[tuple[str, GaugeRows]]] = lambda: (),
) -> FastAPI:
    """The admin port as an ASGI app.

    Args:
        collect: asks the workers.
        version: of Tidegate, for `/version` and `tidegate_build_info`.
        workers: how many worker slots must be ready for `/readyz` to answer 200.
        draining: true from SIGTERM on; `/readyz` then answers 503 without asking the workers.
        supervised: the state that the supervisor published last.
        pools: the configured pools.
        booking: the state of the shipping of usage to SQL.
        api: the collaborators of the admin API under `/admin/v1`; None leaves the API out.
        routes: the routes of the API, made before (`admin_api_routes`); None to make them here.
        rollouts: the state of the rollouts, for metrics.
        alerts: what became of budget alerts, for metrics.
        files: samples of the gauges of stored files and batches.
        headroom: samples of the gauges of what tenants have left of their limits.
        provider: signs people in to the console at an identity provider; None where none is configured.
        agreement: samples of the gauges of the judge's agreement.
    """
    # No docs pages: they load scripts from elsewhere. These routes are in docs/reference/operations.md, the API describes itself.
    app = FastAPI(title="Tidegate admin", version=version, docs_url=None, redoc_url=None, openapi_url=None)
    totals = Totals()
    kept = api.requests if api is not None else None
    usd_per_hour = {pool.name: pool.usd_per_hour for pool in pools if pool.usd_per_hour is not None}
    _add_errors(app)

    async def index() -> Response:
        see = ["/livez", "/readyz", "/metrics", "/version", "/backends", "/pools"]
        see += [f"{PREFIX}/openapi.json", "/console/"] if api is not None else []
        return JSONResponse({"name": "tidegate", "version": version, "see": see})

    async def livez() -> Response:
        return Response("ok\n", media_type="text/plain", headers=NO_STORE)

    async def readyz() -> Response:
        reasons = ["draining"] if draining() else not_ready(await collect(with_metrics=False), workers, supervised())
        # Checked again: SIGTERM may have come while the workers were answering.
        if draining():
            reasons = ["draining"]
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200, NO_STORE)

    async def show_version() -> Response:
        return JSONResponse({"version": version, "python": platform.python_version()})

    async def metrics(request: Request) -> Response:
        snapshots = await collect(with_metrics=True)
        published = supervised()
        scrape = Scrape(
            *(totals.add(snapshots), snapshots, published, workers, version, booking(), rollouts(), alerts()),
            request_log=kept.collector.counts() if kept is not None else None,
            files=files(),
            headroom=headroom(),
            scaling=[*api.scaling.rows(snapshots)] if api is not None and api.scaling is not None else (),
            usd_per_hour=usd_per_hour,
            agreement=agreement(),
        )

        def written() -> tuple[bytes, str]:
            named = processes_of(published, snapshots, os.getpid())
            return render(msgspec.structs.replace(scrape, processes=uses(named)), request.headers.get("accept", ""))

        # Off the loop: a large page takes a tenth of a second and more, and probes must not wait for it.
        text, content_type = await asyncio.to_thread(written)
        return Response(text, headers={"content-type": content_type})

    async def backends() -> Response:
        snapshots = await collect(with_metrics=False)
        shown = {
            "backends": fleet_seen(snapshots),
            "sources": sources_seen(snapshots),
            "clashes": clashes_seen(snapshots),
            "workers": {"expected": workers, "answered": len({worker.index for worker in snapshots})},
        }
        return Response(msgspec.json.encode(shown), media_type="application/json", headers=NO_STORE)

    async def show_pools() -> Response:
        return Response(msgspec.json.encode({"pools": pools}), media_type="application/json", headers=NO_STORE)

    own: dict[str, Callable[..., Awaitable[Response]]] = {
        "/": index,
        "/backends": backends,
        "/pools": show_pools,
        "/livez": livez,
        "/readyz": readyz,
        "/version": show_version,
        "/metrics": metrics,
    }
    for path, answer in own.items():
        app.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
    if api is not None:
        seal = SessionSeal(api.pepper.secret, api.entropy, api.wall)
        app.include_router(console_router(api.authenticator, seal, provider))
        app.add_middleware(ConsoleSessions, seal=seal)
        mounted = routes or admin_api_routes(version)
        mounted.state.parts = api
        app.mount(PREFIX, mounted)
    return app


def made_before_forking(version: str) -> FastAPI:
    """The routes of the admin API (`admin_api_routes`), and caches filled, in the process that the admin process is forked from.

    The first app and the first cipher of a process touch 6 MB that it shares with the one it was forked from, and has a copy of afterwards:
    what FastAPI, pydantic and the tables of types keep, the list of media types, and the tables of OpenSSL.
    """

    async def no_workers(*, with_metrics: bool) -> list[WorkerSnapshot]:
        return []

    async def no_holder(_text: str, _now_unix: float) -> None:
        return None

    create_admin_app(no_workers, version=version, workers=1)
    console_router(Authenticator(None, no_holder, lambda: 0.0, lambda: 0.0), SessionSeal(b"", bytes, lambda: 0.0))
    return admin_api_routes(version)


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        if fault.status_code == 404:
            return error_reply(404, "Unknown path on the admin port; the inference API is on the data port.", "unknown_url")
        if fault.status_code == 405:
            return error_reply(405, f"Method {request.method} is not allowed here.", None, dict(fault.headers or {}))
        return error_reply(fault.status_code, str(fault.detail), "refused", dict(fault.headers or {}))

    async def invalid(_request: Request, fault: Exception) -> Response:
        assert isinstance(fault, RequestValidationError)
        # Only locations and messages: FastAPI's own answer repeats the input.
        details = "; ".join(f"{'.'.join(map(str, error['loc']))}: {words(error, 'an object')}" for error in fault.errors()[:5])
        return error_reply(400, f"Invalid request: {details}", "invalid_value")

    async def broken(_request: Request, _fault: Exception) -> Response:
        return error_reply(500, "Internal error of the admin port; its cause is in the log.", "internal")

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, broken)


def admin_main(
    slot: WorkerSlot,
    *,
    version: str,
    workers: int,
    pools: Sequence[PoolShown] = (),
    bookkeeper: Callable[[], Bookkeeper | None] = lambda: None,
    api: Callable[[WorkerSlot], "ApiRun"] | None = None,
) -> None:
    """Serve the admin port on the inherited socket until the supervisor closes the lifeline (or dies).

    SIGTERM only turns `/readyz` to 503: load balancers must see the 503 for as long as workers still drain.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(slot, version, workers, pools, bookkeeper, api))


async def _serve(
    slot: WorkerSlot,
    version: str,
    workers: int,
    pools: Sequence[PoolShown],
    bookkeeper: Callable[[], Bookkeeper | None],
    api: Callable[[WorkerSlot], "ApiRun"] | None,
) -> None:
    draining = asyncio.Event()

    async def ask(*, with_metrics: bool) -> list[WorkerSnapshot]:
        return await collect(slot.run_dir, FLEET_WITHIN_S, with_metrics=with_metrics)

    books = bookkeeper()
    running = api(slot) if api is not None else None
    app = create_admin_app(
        ask,
        version=version,
        workers=workers,
        draining=draining.is_set,
        supervised=lambda: supervision(slot.run_dir),
        pools=pools,
        booking=lambda: books.state() if books is not None else None,
        api=running.parts if running is not None else None,
        routes=running.routes if running is not None else None,
        rollouts=lambda: running.rollouts() if running is not None else None,
        alerts=lambda: running.alerts() if running is not None else None,
        files=lambda: running.files.rows() if running is not None and running.files is not None else (),
        headroom=lambda: running.headroom.rows() if running is not None else (),
        provider=running.provider if running is not None else None,
        agreement=lambda: running.agreement.rows() if running is not None and running.agreement is not None else (),
    )
    server = AdminServer(app, slot.ready)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, draining.set)

    def stop_server() -> None:
        server.should_exit = True

    def stop_accepting() -> None:
        loop.remove_reader(slot.lifeline)
        # no new connections; those accepted a moment ago are still answered, because their requests are on the way
        for listener in server.servers:
            listener.close()
        loop.call_later(LAST_REQUESTS_S, stop_server)

    loop.add_reader(slot.lifeline, stop_accepting)
    api_task = asyncio.create_task(kept_up(running.run, "admin api")) if running is not None else None
    if books is not None:
        books.start()
    settle_memory()
    await server.serve([slot.sock])
    if books is not None:
        await books.close()
    if running is not None and api_task is not None:
        api_task.cancel()
        await asyncio.gather(api_task, return_exceptions=True)
        await running.close()
