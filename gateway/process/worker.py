"""One data worker: builds its collaborators, waits until it knows keys, policies, usage and fleet, serves, and drains on SIGTERM.

A worker runs in a process forked by `gateway/process/supervisor.py`; the `WorkerSlot` and the `Settings` are its only inputs. `worker_main`
runs it. `first_to_end` and `unless` wait for a result or for SIGTERM, whichever comes first; `gateway/process/drain.py` is the drain.

Size: one worker from its start to its end; each part that it puts together is a file of its own.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import structlog
import uvloop

from backends.lora.loader import LoadDone
from domain.faults import Kind
from gateway.answers.inspection import answers as kept_answers
from gateway.answers.purges import PurgeWatch
from gateway.config.listeners import Tls
from gateway.config.load import Settings
from gateway.config.read_secrets import read_pepper
from gateway.config.trust import CertificateError, validity_of
from gateway.deps import Deps
from gateway.fleet.adapters import RegisteredAdapters
from gateway.fleet.shared_breakers import SharedBreakers
from gateway.fleet.shared_polls import SharedPolls
from gateway.fleet.shared_signals import SharedSignals
from gateway.fleet.sources import STORE_LOOK_EVERY_S, RegisteredSource
from gateway.fleet.view import state_of
from gateway.guards.inspection import answers as judging
from gateway.http.data_port import DataPort
from gateway.http.edge.client_address import TrustedProxies
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.connections import Connections, EdgeLimits
from gateway.http.edge.listener import DataListener
from gateway.http.edge.per_address import AddressBounds, AddressLimits
from gateway.ledger.writer import UsageWriter
from gateway.placement.explain import answers
from gateway.placement.index_copy import COPY_LINE, COPY_WITHIN_S, copied, leave_copy, left_copy, take_copy
from gateway.placement.shared_dispatches import SharedDispatches
from gateway.placement.shared_load import SharedLoad
from gateway.process.background import kept_up
from gateway.process.children import settle_memory
from gateway.process.drain import Closes, drain
from gateway.process.file_descriptors import bounded_connections, kept_descriptors
from gateway.process.host_channel import HostChannel, host_id
from gateway.process.sibling_bus import Sibling, SiblingBus, SiblingTopic
from gateway.process.snapshots import CertificateState, IndexState, State, WorkerSnapshot
from gateway.process.supervisor import WorkerSlot
from gateway.process.worker_link import WorkerLink, ask_oldest, worker_socket
from gateway.queue.outlook import answers as queue_outlook
from gateway.queue.shared_service import SharedService
from gateway.record import Record
from gateway.request.end_revoked import RevokedAnswers
from gateway.request_log.ring import RequestRing
from gateway.rollouts.watch import RolloutWatch
from gateway.sync.policies import PolicyWatch
from gateway.telemetry.access_log import AccessLog, line_of
from gateway.telemetry.families import DETECTOR_RESULTS
from gateway.telemetry.live import LIVE_LINE, SUMMED, WorkerLive
from gateway.telemetry.logs import Thresholds, configure_logs
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.refused_connections import RefusedConnections
from gateway.telemetry.traces import Traces
from gateway.ticks import to_next_tick
from gateway.wiring.answers import answers_for
from gateway.wiring.auth import token_gate_for
from gateway.wiring.files import FileParts, LineEnds
from gateway.wiring.fleet import FleetParts, OwnPorts, fleet_for
from gateway.wiring.guards import GuardDetectors
from gateway.wiring.guessed_tokenizers import guessed_vocabularies_for
from gateway.wiring.judge import JudgeEnds, judge_for
from gateway.wiring.limits import LimitBooks, channel_for
from gateway.wiring.picker import picker_for
from gateway.wiring.priors import priors_for
from gateway.wiring.request_log import captures_for
from gateway.wiring.requests import answer_samples_for, deps_for
from gateway.wiring.stores import (
    background_runs_for,
    decision_log_for,
    directory_watch_for,
    feedback_for,
    open_stores,
    usage_writer_for,
)
from gateway.wiring.traces import traces_for
from policies.load import PolicyFolder
from routing.prefix.chain import generation
from tenancy.hold import LimitUsage
from tenancy.limits import Group

if TYPE_CHECKING:
    from gateway.picker.server import PickerServer

log = structlog.get_logger("tidegate.worker")

T = TypeVar("T")


async def first_to_end(stop: asyncio.Event, loops: list[asyncio.Task[None]]) -> BaseException | None:
    """Wait until `stop` is set, or until a background loop ends.

    Returns:
        None after a stop. Otherwise the error of the loop that ended, which ends the worker: without its polls or deadlines a worker
        would serve on blindly.
    """
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait((stopping, *loops), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        return None
    error = done.pop().exception() or RuntimeError("a background loop returned")
    log.error("a background loop ended, so this worker does", exc_info=error)
    return error


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when `stop` is set first; the work is cancelled then."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None


SWEEP_S: Final = 0.25
"""How often deadlines are checked: the shortest deadlines are seconds, and one sweep over 1,000 streams costs about 0.5 ms."""

LISTEN_BACKLOG: Final = 4096
"""Connections that wait in the kernel's queue; net.core.somaxconn (4096 on current kernels) bounds them anyway."""


def tls_context(tls: Tls) -> ssl.SSLContext:
    """TLS of the data port: 1.2 or newer, and HTTP/1.1 by ALPN, so that a client that offers HTTP/2 too does not begin with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.private_key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def expiry_of(certificate: Path) -> float | None:
    """When a listener's certificate expires, seconds since the epoch; None for a form that only OpenSSL reads."""
    try:
        return validity_of(certificate).ends
    except CertificateError:
        return None


def worker_main(slot: WorkerSlot, settings: Settings) -> None:
    """Serve until SIGTERM, then drain; returns when the last reply is out or the grace is over."""
    configure_logs(settings.log.level, worker=slot.index)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Worker(slot, settings).run())


async def _looking(*looks: Callable[[], Awaitable[None]]) -> None:
    """Look at tables of the database until cancelled, one after the other: at the same time they would need a connection each."""
    while True:
        await asyncio.sleep(STORE_LOOK_EVERY_S)
        for look in looks:
            await look()


class _Worker:
    def __init__(self, slot: WorkerSlot, settings: Settings) -> None:
        self._slot = slot
        self._index = slot.index
        self._settings = settings
        self._state: State = "starting"
        self._waiting_for = ["keys", "policies", "usage", "fleet"]
        self._started_at = time.time()
        self._metrics = Metrics(providers={pool.name: pool.dialect for pool in settings.pools})
        self._policies = PolicyWatch(
            PolicyFolder(settings.policies_dir, *settings.policy_targets, settings.prompts_dir, settings.detector_names),
            time.time,
            self._metrics.know,
        )
        self._thresholds = Thresholds(log, time.monotonic)
        self._access_log: AccessLog | None = None
        self._chain_key = ""
        self._usage: UsageWriter | None = None
        self._deps: Deps | None = None
        self._fleet: FleetParts | None = None
        self._connections: Connections | None = None
        self._books: LimitBooks | None = None
        self._bus: SiblingBus | None = None
        self._link: WorkerLink | None = None
        self._callers_end: float | None = None
        """When the data port's certificate expires."""
        self._picker: PickerServer | None = None
        self._rollouts: RolloutWatch | None = None
        self._traces: Traces | None = None
        self._revoked = RevokedAnswers()
        self._noted = 0
        """Requests that are over."""
        self._leaves = asyncio.Lock()
        self._ring = RequestRing(f"{slot.index}-{os.getpid()}-{secrets.token_hex(4)}") if settings.request_log.enabled else None
        self._detectors = GuardDetectors()
        self._addresses = AddressLimits(AddressBounds(**settings.data.per_address.model_dump()), time.monotonic)

    async def run(self) -> None:
        """Prepare, serve until SIGTERM, drain."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        answering = {**answers(lambda: self._deps), **kept_answers(lambda: self._deps), **self._policies.answers()}
        answering |= {COPY_LINE: self._copied, LIVE_LINE: self._live}
        answering |= {**queue_outlook(lambda: self._deps), **judging(lambda: self._deps)}
        if self._ring is not None:
            answering |= self._ring.answers()
        socket = worker_socket(Path(self._slot.run_dir), self._index, os.getpid())
        link = self._link = WorkerLink(socket, self._snapshot, self._look, answering, families=self._metrics.families, clock=time.monotonic)
        await link.start()
        if self._settings.log.access:
            self._access_log = AccessLog(sys.stdout.fileno(), asyncio.get_running_loop().call_later, end_user=self._settings.log.end_user)
        self._traces = traces_for(self._settings)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(link.close)
            prepared = await unless(stop, self._prepare(stack))
            if prepared is None:
                return  # SIGTERM came before the worker could serve
            deps, watches = prepared
            if self._settings.log.prompt_chain:
                self._chain_key = generation(deps.salt_secret)
                if self._access_log is not None:
                    self._access_log.chain_key = self._chain_key
            if self._rollouts is not None:
                answering |= self._rollouts.answers(deps.live)  # the link looks questions up in this mapping
            loops = [asyncio.create_task(work) for work in (*watches, self._sweep(), self._leave_copies(deps))]
            settle_memory()
            connections, server = await self._listen(deps)
            picker = self._picker = await picker_for(self._settings, deps, self._metrics.count_pick)
            loops += [asyncio.create_task(work) for work in (picker.loops() if picker is not None else ())]
            self._state = "ready"
            self._slot.ready()
            broken = await first_to_end(stop, loops)
            self._state = "draining"
            leaving = asyncio.create_task(self._leave_copy(deps))
            limits = self._settings.drain
            picking = asyncio.create_task(picker.close(limits.accept_s, limits.grace_s)) if picker is not None else None
            await drain(server, connections, deps, limits, self._index)
            await leaving
            if picking is not None:
                await picking
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        if self._ring is not None:
            self._ring.leave(Path(self._slot.run_dir))
        if self._access_log is not None:
            self._access_log.close()
        if self._traces is not None:
            await self._traces.close()
        if broken is not None:
            raise broken  # the supervisor starts another worker

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> tuple[Deps, list[Coroutine[Any, Any, None]]]:
        """Load everything that requests need; no request is accepted before this returns.

        Returns:
            The requests' collaborators, and the background loops to run beside them.
        """
        settings = self._settings
        pepper = read_pepper(settings)
        stores = open_stores(settings, pepper)
        watch = directory_watch_for(settings, stores, pepper)
        stack.push_async_callback(watch.close)
        directory = await watch.load()
        self._waiting_for.remove("keys")
        if (usage := usage_writer_for(settings)) is not None:
            self._usage = usage
            stack.push_async_callback(usage.close)
        policies = self._policies.first()
        self._waiting_for.remove("policies")
        run_dir = Path(self._slot.run_dir)
        tokens = await token_gate_for(settings, self._metrics.count_token, run_dir)
        books = self._books = LimitBooks(settings, stores.spend, self._usage)
        stack.push_async_callback(books.close)
        counters = await books.open(run_dir, lambda: deps.live.directory)
        files = FileParts(settings)
        stack.push_async_callback(files.close)
        samples = answer_samples_for(settings, self._metrics)
        stack.callback(samples.close)
        if (judge := judge_for(settings, pepper)) is not None:
            stack.push_async_callback(judge.close)
        answer_cache, close_answers = await answers_for(settings, pepper)
        stack.push_async_callback(close_answers)
        stack.push_async_callback(self._detectors.close)
        deps = self._deps = deps_for(
            settings,
            policies,
            directory,
            pepper,
            tokens=tokens,
            counters=counters,
            observe=self._observe_address if self._addresses.bounds_requests else self._observe,
            log_defect=_log_defect,
            observe_load=self._observe_load,
            usage=self._usage,
            spend=stores.spend if self._usage is not None else None,
            count_destination=self._metrics.count_destination,
            observe_decision=self._metrics.observe_decision,
            count_prefix=self._metrics.count_prefix,
            count_first_token=self._metrics.count_first_token,
            answer_samples=samples,
            late_findings=self._metrics.count_late_findings,
            guessed=await guessed_vocabularies_for(settings),
            answers=answer_cache,
            detectors=self._detectors,
            files=files.service,
            responses=stores.responses,
            background=background_runs_for(stores),
            conversations=stores.conversations,
            feedback=feedback_for(settings, stores, self._metrics.count_feedback),
            captures=captures_for(settings, pepper, self._ring, answer_cache.digest_of_user, _log_defect),
            priors=await priors_for(settings, stores.models),
        )
        await self._detectors.prepare()
        stack.push_async_callback(answer_cache.close)
        if (decision_log := decision_log_for(settings)) is not None:
            stack.push_async_callback(decision_log.close)
            deps.decisions.written = decision_log.note
        await books.begin()
        self._waiting_for.remove("usage")
        fleet = fleet_for(
            settings,
            deps,
            registered=RegisteredSource(stores.members),
            run_dir=run_dir,
            own_ports=OwnPorts(settings, self._slot),
            count_kv=self._metrics.count_kv_events,
            count_push=self._metrics.count_load_reports,
        )
        stack.push_async_callback(fleet.close)
        adapters = RegisteredAdapters(stores.adapters, run_dir, deps.loras.register)
        await adapters.first()
        await fleet.learn()
        self._fleet = fleet
        self._waiting_for.remove("fleet")
        rollouts = self._rollouts = RolloutWatch(stores.rollouts, deps.new_id(), time.time)
        stack.push_async_callback(rollouts.close)
        await rollouts.look(deps.live)
        limits = books.loops(deps.pool_states.set_share, lambda: self._state == "draining")
        registered = _looking(adapters.look, PurgeWatch(stores.purges, deps.answers.purge).look)
        loops = [
            *fleet.loops(),
            registered,
            *files.loops(self._index, deps, self._line_ends()),
            *((kept_up(deps.background.keep, "background Responses"),) if deps.background is not None else ()),
            *(tokens.loops() if tokens else ()),
            *limits,
            *((judge.loop(deps, self._judge_ends(rollouts)),) if judge is not None else ()),
        ]
        self._policies.follow(deps.live)
        await self._join_siblings(deps, fleet, stack)
        await self._take_copy(deps)
        return deps, [*loops, watch.run(deps.live), self._policies.run(), rollouts.run(deps.live), deps.holds.run(deps.counters)]

    async def _join_siblings(self, deps: Deps, fleet: FleetParts, stack: contextlib.AsyncExitStack) -> None:
        """Open the channels to the other workers of this host and to other hosts, where there are any."""
        me = Sibling(self._index, os.getpid())
        shared: list[SharedBreakers | SharedDispatches | SharedLoad | SharedPolls | SharedService | SharedSignals] = []
        if self._settings.workers > 1:
            watch = fleet.signal_watch
            watch.shared = SharedSignals(me, deps.pool_states, watch.take, deps.clock)
            polls = fleet.fleet_watch
            polls.shared = SharedPolls(me, polls.take, deps.clock)
            shared += [SharedBreakers(deps.live, self._index, deps.clock), watch.shared, polls.shared]
        if deps.shared_dispatches is not None:
            shared.append(deps.shared_dispatches)
        if deps.shared_load is not None:
            shared += [deps.shared_load, SharedService(deps.queues)]
        if not shared:
            return
        topics: list[SiblingTopic] = [*shared]
        run_dir = Path(self._slot.run_dir)
        hosts = None
        if (channel := channel_for(self._settings, deps.pool_states.generation)) is not None:
            hosts = HostChannel(channel, host_id(run_dir), me, deps.clock)
        bus = self._bus = SiblingBus(run_dir, me, topics, deps.clock, hosts)
        stack.push_async_callback(bus.close)
        for topic in shared:
            topic.tell_soon = bus.tell_soon
        try:
            await bus.start()
        except OSError as error:
            log.warning("this worker and the others tell each other nothing", reason=str(error))

    async def _copied(self, _question: bytes) -> bytes:
        return await copied(self._deps.pool_states) if self._deps is not None and self._state == "ready" else b""

    async def _take_copy(self, deps: Deps) -> None:
        """Begin with what another worker of this host assumes of the engines' caches, where one is ready and answers in time, or else with
        what the gateway before left in its file."""
        run_dir, began_at, file = Path(self._slot.run_dir), deps.clock(), self._settings.index_file
        try:
            async with asyncio.timeout(COPY_WITHIN_S):
                payload = await ask_oldest(run_dir, COPY_LINE, COPY_WITHIN_S)
                if not payload and file is not None:
                    payload = await asyncio.to_thread(left_copy, file, time.time())
            blocks = take_copy(deps.pool_states, payload, deps.clock()) if payload else 0
        except (TimeoutError, ValueError, OSError) as error:
            log.warning("prefix index not taken over", reason=str(error) or f"no answer within {COPY_WITHIN_S:g} s")
            return
        if blocks:
            log.info("prefix index taken over", blocks=blocks, took_s=round(deps.clock() - began_at, 3))

    async def _leave_copy(self, deps: Deps) -> None:
        """Leave the prefix index to the next start; the first worker does, which knows what the others know."""
        file = self._settings.index_file
        if self._index != 0 or file is None:
            return
        async with self._leaves:
            try:
                await asyncio.to_thread(leave_copy, file, await copied(deps.pool_states), time.time())
            except OSError as error:
                log.warning("the prefix index could not be left to the next start", file=str(file), reason=str(error))

    async def _leave_copies(self, deps: Deps) -> None:
        """Leave the prefix index every so often, for a gateway that is killed; while no request changes it, the last copy is as good."""
        left = 0
        while True:
            await asyncio.sleep(self._settings.routing.index_every_s)
            if self._noted != left and self._state == "ready":
                left = self._noted
                await self._leave_copy(deps)

    async def _listen(self, deps: Deps) -> tuple[Connections, Closes]:
        data = self._settings.data
        proxies = TrustedProxies.of(data.trusted_proxies.networks, data.trusted_proxies.header)
        port, addresses = DataPort(deps), self._addresses
        connections = self._connections = Connections(
            EdgeLimits(
                **{
                    **data.limits.model_dump(),
                    "max_connections": bounded_connections(data.limits.max_connections, kept=kept_descriptors(self._settings)),
                }
            ),
            deps.clock,
            deps.wall,
            serve=port.start_within(addresses) if addresses.bounds_requests else port.start,
            refuse=port.refuse,
            log_defect=deps.log_defect,
            hosts=frozenset(host.lower().encode("ascii") for host in data.hosts),
            proxies=proxies if proxies.networks else None,
            pickers=proxies if data.trusted_proxies.destination_endpoint else None,
            streams=port.streams,
        )
        tls = tls_context(data.tls) if data.tls is not None else None
        if data.tls is not None:
            self._callers_end = expiry_of(Path(data.tls.certificate))
        if data.trusted_proxies.proxy_protocol or addresses.bounds_connections:
            listener = DataListener(
                connections,
                proxies=proxies,
                proxy_protocol=data.trusted_proxies.proxy_protocol,
                addresses=addresses if addresses.bounds_connections else None,
                tls=tls,
                refused=RefusedConnections(self._metrics.count_refused_connection, log, deps.clock).note,
            )
            listener.start(self._slot.sock, LISTEN_BACKLOG)
            return connections, listener
        server = await deps.loop.create_server(lambda: EdgeConnection(connections), sock=self._slot.sock, backlog=LISTEN_BACKLOG, ssl=tls)
        return connections, server

    async def _sweep(self) -> None:
        while True:
            slept_at, pause_s = time.monotonic(), to_next_tick(SWEEP_S)
            await asyncio.sleep(pause_s)
            self._metrics.count_lag(self._index, max(0.0, time.monotonic() - slept_at - pause_s))
            deps = self._deps
            connections = self._connections
            if deps is not None and connections is not None:
                now = deps.clock()
                deps.watch.sweep(now, deps.log_defect)
                deps.queues.sweep(now)
                self._revoked.sweep(now, deps)
                connections.sweep(now)

    def _line_ends(self) -> LineEnds:
        async def at_once() -> None:
            pass

        def nowhere(_record: Record) -> None:
            pass

        usage = self._usage
        book, durable = (usage.observe, usage.durable) if usage is not None else (nowhere, at_once)
        return LineEnds(self._note, book, durable, lambda: self._state == "draining", self._metrics.count_batch_lines)

    def _judge_ends(self, rollouts: RolloutWatch) -> JudgeEnds:
        return JudgeEnds(self._metrics, rollouts.observe_pair, lambda: self._state == "draining")

    def _observe(self, record: Record) -> None:
        self._note(record)
        if self._usage is not None and not record.shadow:
            self._usage.observe(record)

    def _note(self, record: Record) -> None:
        if (record.dealt is not None or record.dealt_prompt is not None) and self._rollouts is not None:
            self._rollouts.observe(record)
        if record.shadow:
            return
        self._noted += 1
        self._metrics.observe(record)
        line = self._access_log.write(record) if self._access_log is not None else b""
        if self._ring is not None and (deps := self._deps) is not None:
            line = line or line_of(record, end_user=self._settings.log.end_user, chain_key=self._chain_key)
            self._ring.observe(record, line, deps.answers.digest_of_user, deps.live.policies)
        if record.soft_limits:
            self._thresholds.observe(record)
        if self._traces is not None and record.trace is not None:
            self._traces.observe(record)

    def _observe_address(self, record: Record) -> None:
        self._observe(record)
        if record.outcome == Kind.KEY_INVALID.value:
            self._addresses.invalid_key(record.client)

    def _observe_load(self, done: LoadDone) -> None:
        self._metrics.observe_load(done)
        tell = log.warning if done.why else log.info
        tell(f"adapter {done.act}", backend=done.backend, lora=done.served, took_s=round(done.took_s, 3), reason=done.why)

    async def _look(self, group: Group) -> list[LimitUsage]:
        return await self._books.look(group) if self._books is not None else []

    async def _live(self, _question: bytes) -> bytes:
        in_flight = self._deps.budget.active if self._deps else 0
        connections = len(self._connections.open) if self._connections else 0
        return msgspec.msgpack.encode(WorkerLive(self._snapshot(False), in_flight, connections, self._metrics.sums(SUMMED)))

    def _snapshot(self, with_metrics: bool) -> WorkerSnapshot:
        deps = self._deps
        metrics = ledger = limits = None
        if with_metrics:
            self._metrics.in_flight = deps.budget.active if deps else 0
            self._metrics.connections = len(self._connections.open) if self._connections else 0
            if self._usage is not None:
                ledger = self._usage.state()
                self._metrics.set_ledger(ledger.written, ledger.dropped)
            if self._books is not None and deps is not None:
                limits = self._books.state(len(deps.holds))
                self._metrics.set_index(deps.pool_states.index.evicted)
                self._metrics.set_limits(limits)
                if self._bus is not None and deps.shared_dispatches is not None:
                    self._metrics.set_siblings(deps.shared_dispatches.figures(), self._bus.figures())
                self._metrics.set_answers(
                    deps.answers.store.figures(), deps.answers.semantic.state().index if deps.answers.semantic else None
                )
            for name, figures in self._detectors.figures().items():
                self._metrics.set_detector(name, {word: getattr(figures, word) for word in DETECTOR_RESULTS}, figures.seconds)
            if self._traces is not None:
                self._metrics.set_traces(self._traces.figures())
            metrics = self._metrics.totals(self._access_log.dropped if self._access_log else 0)
        return WorkerSnapshot(
            index=self._index,
            pid=os.getpid(),
            state=self._state,
            started_at=self._started_at,
            reasons=tuple(f"{what} not known yet" for what in self._waiting_for),
            fleet=tuple(state_of(b, deps, self._fleet) for p in deps.live.fleet.pools.values() for b in p.backends) if deps else (),
            sources=self._fleet.membership.states() if self._fleet else (),
            clashes=self._fleet.membership.clashes if self._fleet else (),
            tasks=len(asyncio.all_tasks()),
            policies=self._policies.state,
            issuers=deps.tokens.states() if deps and deps.tokens else (),
            certificates=self._certificates(),
            metrics=metrics,
            prefixes=IndexState(deps.pool_states.index.blocks, deps.pool_states.index_bound) if deps else None,
            queues=deps.queues.states() if deps else (),
            ledger=ledger,
            limits=limits,
            answers=deps.answers.store.figures() if deps else None,
            similar=deps.answers.semantic.state() if deps and deps.answers.semantic else None,
            slice_s=self._link.longest_slice_s if self._link else 0.0,
        )

    def _certificates(self) -> tuple[CertificateState, ...]:
        ends = self._fleet.tls_watch.ends() if self._fleet else {}
        found = [CertificateState("engines", pool, at) for pool, at in ends.items()]
        if self._picker is not None and (at := self._picker.certificate_ends) is not None:
            found.insert(0, CertificateState("proxies", "", at))
        if self._callers_end is not None:
            found.insert(0, CertificateState("callers", "", self._callers_end))
        return tuple(found)


def _log_defect(error: BaseException, request_id: str) -> None:
    log.error("defect", request_id=request_id, exc_info=error)
