"""The admin port: probes, metrics, version and the fleet over FastAPI, in a process of its own so that it never weighs on workers.

Knows workers only through snapshots (`gateway.worker_link`); keys, policies and the data port are not its business.
`create_admin_app` is the app alone, `admin_main` what the supervisor runs.
"""

import asyncio
import contextlib
import platform
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec
import uvicorn
import uvloop
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from domain.membership import Owner
from gateway.fleet.registry import Registry
from gateway.fleet.seen import clashes_seen, fleet_seen, sources_seen
from gateway.http.admin_backends import add_backend_routes
from gateway.http.admin_errors import error_reply
from gateway.supervisor import Seat
from gateway.telemetry.exposition import Scrape, render
from gateway.worker_link import Supervision, Totals, WorkerSnapshot, collect, not_ready, supervision

FLEET_WITHIN_S: Final = 0.5
"""Longest wait for a worker's snapshot; a loop that is silent for longer is not ready to take requests."""
LAST_REQUESTS_S: Final = 0.3
"""How long a process that was replaced goes on answering the connections it has taken."""
MAX_CONNECTIONS: Final = 256
"""Open connections of the admin port; beyond it uvicorn answers 503. Probes, a scraper and a few people need ten."""
NO_STORE: Final = {"cache-control": "no-store"}


class PoolShown(msgspec.Struct, frozen=True):
    """A pool as `/pools` lists it, with or without backends."""

    name: str
    model: str
    """What its engines are asked for."""
    dialect: str


class Collect(Protocol):
    """Asks every worker for a snapshot; with or without its numbers."""

    def __call__(self, *, with_metrics: bool) -> Awaitable[list[WorkerSnapshot]]:
        """The workers that answered."""
        ...


def create_admin_app(
    collect: Collect,
    *,
    version: str,
    workers: int,
    draining: Callable[[], bool] = lambda: False,
    supervised: Callable[[], Supervision | None] = lambda: None,
    registry: Registry | None = None,
    token: str | None = None,
    pools: Sequence[PoolShown] = (),
) -> FastAPI:
    """The admin port as an ASGI app.

    Args:
        collect: asks the workers.
        version: of Tidegate, for `/version` and `tidegate_build_info`.
        workers: how many places must be ready for `/readyz` to answer 200.
        draining: true from SIGTERM on; `/readyz` then answers 503 without asking anybody.
        supervised: what the supervisor last published.
        registry: changes the fleet; None where nothing can be changed.
        token: what changing the fleet asks for; without one it is refused.
        pools: the pools there are, by the settings.
    """
    # No OpenAPI, no docs pages: they load scripts from elsewhere, and the routes are in docs/operations.md.
    app = FastAPI(title="Tidegate admin", version=version, docs_url=None, redoc_url=None, openapi_url=None)
    totals = Totals()
    _add_errors(app)

    async def index() -> Response:
        see = ["/livez", "/readyz", "/metrics", "/version", "/backends", "/pools"]
        return JSONResponse({"name": "tidegate", "version": version, "see": see})

    async def livez() -> Response:
        return Response("ok\n", media_type="text/plain", headers=NO_STORE)

    async def readyz() -> Response:
        reasons = ["draining"] if draining() else not_ready(await collect(with_metrics=False), workers, supervised())
        # Asked again: SIGTERM may have come while the workers were answering.
        if draining():
            reasons = ["draining"]
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200, NO_STORE)

    async def show_version() -> Response:
        return JSONResponse({"version": version, "python": platform.python_version()})

    async def metrics(request: Request) -> Response:
        seen = await collect(with_metrics=True)
        scrape = Scrape(totals.add(seen), seen, supervised(), workers, version)
        # Off the loop: a scrape at every ceiling takes tens of milliseconds, and probes must not wait for it.
        text, content_type = await asyncio.to_thread(render, scrape, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def backends() -> Response:
        seen = await collect(with_metrics=False)
        shown = {
            "backends": fleet_seen(seen),
            "sources": sources_seen(seen),
            "clashes": clashes_seen(seen),
            "workers": {"expected": workers, "answered": len({worker.index for worker in seen})},
        }
        return Response(msgspec.json.encode(shown), media_type="application/json", headers=NO_STORE)

    async def show_pools() -> Response:
        return Response(msgspec.json.encode({"pools": pools}), media_type="application/json", headers=NO_STORE)

    async def owners() -> dict[str, Owner]:
        return {b.backend: b.source for b in fleet_seen(await collect(with_metrics=False)) if b.source}

    routes: dict[str, Callable[..., Awaitable[Response]]] = {
        "/": index,
        "/backends": backends,
        "/pools": show_pools,
        "/livez": livez,
        "/readyz": readyz,
        "/version": show_version,
        "/metrics": metrics,
    }
    for path, answer in routes.items():
        app.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
    if registry is not None:
        add_backend_routes(app, registry, token, owners)
    return app


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
        # Places and messages only: FastAPI's own answer repeats the input.
        found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in fault.errors()[:5])
        return error_reply(400, f"Invalid request: {found}", "invalid_value")

    async def broken(_request: Request, _fault: Exception) -> Response:
        return error_reply(500, "Internal error of the admin port; its cause is in the log.", "internal")

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, broken)


class _Server(uvicorn.Server):
    """uvicorn, told apart in two points: signals are ours, and the supervisor hears when the socket is served."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone: SIGTERM means drain here, not exit."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts serving, then says so."""
        await super().startup(sockets)
        self._ready()


def admin_main(
    seat: Seat,
    *,
    version: str,
    workers: int,
    registry: Callable[[Seat], Registry] | None = None,
    token: str | None = None,
    pools: Sequence[PoolShown] = (),
) -> None:
    """Serves the admin port on the inherited socket until the supervisor closes the lifeline (or dies).

    SIGTERM only turns `/readyz` to 503: load balancers must see it for as long as workers still drain.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(seat, version, workers, registry, token, pools))


async def _serve(
    seat: Seat,
    version: str,
    workers: int,
    registry: Callable[[Seat], Registry] | None,
    token: str | None,
    pools: Sequence[PoolShown],
) -> None:
    draining = asyncio.Event()

    async def ask(*, with_metrics: bool) -> list[WorkerSnapshot]:
        return await collect(seat.run_dir, FLEET_WITHIN_S, with_metrics=with_metrics)

    changes = registry(seat) if registry is not None else None
    app = create_admin_app(
        ask,
        version=version,
        workers=workers,
        draining=draining.is_set,
        supervised=lambda: supervision(seat.run_dir),
        registry=changes,
        token=token,
        pools=pools,
    )
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=75,  # above the 60 s at which common load balancers reuse connections
        timeout_graceful_shutdown=2,
    )
    server = _Server(config, seat.ready)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, draining.set)

    def leave() -> None:
        server.should_exit = True

    def let_go() -> None:
        loop.remove_reader(seat.lifeline)
        # no more connections here, but those that were taken a moment ago are still answered: their requests are on the way
        for listening in server.servers:
            listening.close()
        loop.call_later(LAST_REQUESTS_S, leave)

    loop.add_reader(seat.lifeline, let_go)
    await server.serve([seat.sock])
    if changes is not None:
        await changes.close()
