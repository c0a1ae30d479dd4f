"""One data worker: builds its parts, waits until it knows keys, policies and fleet, serves, and drains on SIGTERM.

Runs in a process forked by `gateway/supervisor.py`; everything it needs to be told comes in the Seat and the Settings.
"""

import asyncio
import contextlib
import gc
import os
import signal
import ssl
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
import uvloop

from backends.lora_loader import LoadDone
from domain.faults import Fault, Kind, Retry
from gateway.deps import Deps
from gateway.fleet.registered_source import RegisteredSource
from gateway.fleet.wiring import FleetParts, OwnPorts, fleet_for
from gateway.http.data_port import DataPort
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.door import Door
from gateway.http.edge.limits import EdgeLimits
from gateway.secrets import read_pepper
from gateway.settings import Settings
from gateway.story import Record
from gateway.supervisor import Seat
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.logs import configure_logs
from gateway.telemetry.metrics import Metrics
from gateway.wiring import deps_for, key_watch_for, open_stores
from gateway.worker_link import BackendState, State, WorkerLink, WorkerSnapshot, worker_socket
from policies.compile import PolicySet
from policies.load import load_policies
from routing.fleet import Backend
from routing.fleet import State as BackendIs

SWEEP_S: Final = 0.25
"""How often deadlines are looked at. The shortest deadline is seconds, so a quarter of one is exact enough, and one sweep
over 1,000 streams costs about half a millisecond."""

KEY_POLL_S: Final = 2.0
"""How often the key store's change counter is read: a revoked key is refused within 5 s (R34), two polls and a load."""

BACKLOG: Final = 4096
"""Connections the kernel holds for us; bounded by net.core.somaxconn (4096 on current kernels) anyway."""

T = TypeVar("T")

log = structlog.get_logger("tidegate.worker")


def worker_main(seat: Seat, settings: Settings) -> None:
    """Serve until SIGTERM, then drain; returns when the last reply is out or the grace is over."""
    configure_logs(settings.log.level, worker=seat.index)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Worker(seat, settings).run())


class _Worker:
    def __init__(self, seat: Seat, settings: Settings) -> None:
        self._seat = seat
        self._index = seat.index
        self._settings = settings
        self._state: State = "starting"
        self._waiting_for = ["keys", "policies", "fleet"]
        self._started_at = time.time()
        self._metrics = Metrics()
        self._access_log: AccessLog | None = None
        self._deps: Deps | None = None
        self._fleet: FleetParts | None = None
        self._door: Door | None = None

    async def run(self) -> None:
        """The whole life of the worker."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        link = WorkerLink(worker_socket(Path(self._seat.run_dir), self._index, os.getpid()), self._snapshot)
        await link.start()
        if self._settings.log.access:
            self._access_log = AccessLog(sys.stdout.fileno(), asyncio.get_running_loop().call_later)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(link.close)
            prepared = await _unless(stop, self._prepare(stack))
            if prepared is None:
                return  # told to go before there was anything to serve
            deps, watches = prepared
            loops = [asyncio.create_task(work) for work in (*watches, self._sweep())]
            _settle_memory()
            server = await self._listen(deps)
            self._state = "ready"
            self._seat.ready()
            broken = await _first_to_end(stop, loops)
            await self._drain(server, deps)
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        if self._access_log is not None:
            self._access_log.close()
        if broken is not None:
            raise broken  # the supervisor starts another worker

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> tuple[Deps, list[Coroutine[Any, Any, None]]]:
        """Learn everything a request needs; no request is accepted before this returns."""
        settings = self._settings
        pepper = read_pepper(settings)
        stores = open_stores(settings)
        key_watch = key_watch_for(stores, pepper)
        stack.push_async_callback(key_watch.close)
        keys = await key_watch.load()
        self._waiting_for.remove("keys")
        policies = load_policies(settings.policies_dir, *settings.policy_targets)
        self._waiting_for.remove("policies")
        self._metrics.know(_model_names(policies))
        deps = deps_for(settings, policies, keys, pepper, observe=self._observe, log_defect=_log_defect, observe_load=self._observe_load)
        self._deps = deps
        run_dir = Path(self._seat.run_dir)
        fleet = fleet_for(
            settings,
            deps,
            registered=RegisteredSource(stores.members),
            run_dir=run_dir,
            own_ports=OwnPorts(settings, self._seat),
            count_kv=self._metrics.count_kv_events,
        )
        stack.push_async_callback(fleet.close)
        await fleet.learn()
        self._fleet = fleet
        self._waiting_for.remove("fleet")
        return deps, [*fleet.loops(), key_watch.run(deps.live, KEY_POLL_S)]

    async def _listen(self, deps: Deps) -> asyncio.Server:
        data = self._settings.data
        port = DataPort(deps)
        door = self._door = Door(
            EdgeLimits(**data.limits.model_dump()),
            deps.clock,
            deps.wall,
            serve=port.start,
            refuse=port.refuse,
            log_defect=deps.log_defect,
            hosts=frozenset(host.lower().encode("ascii") for host in data.hosts),
        )
        tls = None
        if data.tls is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.minimum_version = ssl.TLSVersion.TLSv1_2
            tls.load_cert_chain(data.tls.certificate, data.tls.private_key)
        return await deps.loop.create_server(lambda: EdgeConnection(door), sock=self._seat.sock, backlog=BACKLOG, ssl=tls)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            deps, door = self._deps, self._door
            if deps is not None and door is not None:
                now = deps.clock()
                deps.watch.sweep(now, deps.log_defect)
                door.sweep(now)

    async def _drain(self, server: asyncio.Server, deps: Deps) -> None:
        """Unready at once, accept a little longer, finish what runs, then tell the rest that we go (R21)."""
        drain, door = self._settings.drain, self._door
        assert door is not None
        self._state = "draining"
        door.draining = True
        log.info("draining", worker=self._index, in_flight=deps.budget.active, accept_s=drain.accept_s, grace_s=drain.grace_s)
        await asyncio.sleep(drain.accept_s)
        server.close()
        door.start_draining()
        give_up_at = deps.clock() + drain.grace_s
        while door.connections and deps.clock() < give_up_at:
            await asyncio.sleep(0.02)
        if deps.budget.active:
            log.warning("the grace is over; cutting what still runs", worker=self._index, in_flight=deps.budget.active)
        for relay in deps.watch.relays():
            relay.end_with(
                Fault(Kind.SHUTTING_DOWN, "The gateway is shutting down. Send the request again.", retry=Retry(should=True, after_s=1.0))
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(door.emptied(), 2.0)
        for connection in list(door.connections):
            connection.abort()
        await asyncio.sleep(0)  # let the last Records be written

    def _observe(self, record: Record) -> None:
        self._metrics.observe(record)
        if self._access_log is not None:
            self._access_log.write(record)

    def _observe_load(self, done: LoadDone) -> None:
        self._metrics.observe_load(done)
        tell = log.warning if done.why else log.info
        tell(f"adapter {done.act}", backend=done.backend, lora=done.served, took_s=round(done.took_s, 3), reason=done.why)

    def _snapshot(self, with_metrics: bool) -> WorkerSnapshot:
        deps, door = self._deps, self._door
        metrics = None
        if with_metrics:
            self._metrics.in_flight = deps.budget.active if deps else 0
            self._metrics.connections = len(door.connections) if door else 0
            metrics = self._metrics.snapshot(self._access_log.dropped if self._access_log else 0)
        pools = deps.live.fleet.pools.values() if deps else ()
        return WorkerSnapshot(
            index=self._index,
            pid=os.getpid(),
            state=self._state,
            started_at=self._started_at,
            reasons=tuple(f"{what} not known yet" for what in self._waiting_for),
            fleet=tuple(self._backend_state(deps, b) for p in pools for b in p.backends) if deps else (),
            sources=self._fleet.membership.states() if self._fleet else (),
            clashes=self._fleet.membership.clashes if self._fleet else (),
            policy_digest=deps.live.policies.digest if deps else "",
            metrics=metrics,
        )

    def _backend_state(self, deps: Deps, backend: Backend) -> BackendState:
        signals = deps.live.signals.get(backend.id)
        age_s = None if signals is None else deps.clock() - signals.read_at
        in_flight = deps.load.in_flight[backend.id]
        mark, prefill = deps.live.marks.get(backend.id), deps.live.prefill.get(backend.id)
        sent, ended = (0, 0) if mark is None else deps.load.since(backend.id, mark)
        member = self._fleet.roster.member(backend.id) if self._fleet else None
        return BackendState(
            backend.pool,
            backend.id,
            backend.state is BackendIs.UP,
            backend.reason,
            in_flight,
            signals,
            age_s,
            sent,
            ended,
            prefill_tokens_per_s=None if prefill is None else prefill.tokens_per_s,
            kv=deps.live.kv.get(backend.id),
            loras=deps.loras.resident(backend.id),
            state=backend.state.value,
            source=member.owner if member else "",
            url=member.url if member else "",
        )


async def _first_to_end(stop: asyncio.Event, loops: list[asyncio.Task[None]]) -> BaseException | None:
    """Wait until told to stop. A loop that ends before that takes the worker with it: without its polls or deadlines a worker
    would go on serving, blindly."""
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait((stopping, *loops), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        return None
    error = done.pop().exception() or RuntimeError("a background loop returned")
    log.error("a background loop ended, so this worker does", exc_info=error)
    return error


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns, or None when `stop` is set first; the work is cancelled then."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None


def _model_names(policies: PolicySet) -> list[str]:
    return sorted({name for policy in policies.policies() for name in policy.models})


def _settle_memory() -> None:
    """What start-up has made lives as long as the process: no collection needs to walk it again. Requests make no cycles, so
    the collector may look less often than by default (700 allocations), which it would reach every tenth request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _log_defect(error: BaseException, request_id: str) -> None:
    log.error("defect", request_id=request_id, exc_info=error)
