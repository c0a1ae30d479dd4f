"""Builds the parts that keep a worker's fleet: the sources of backends, and for each backend its upstreams, its poll and its readings.

Adapters made here come and go with backends; adapters made in `gateway/wiring/requests.py` live as long as the process.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from backends.clients.endpoint import EngineEndpoint, endpoint, is_local, resolved
from backends.clients.http1 import RelayUpstream
from backends.dialects import DIALECTS
from backends.discovery.dns import DnsSource, system_lookup
from backends.discovery.engine_ports import PortedSource
from backends.discovery.kubernetes.inference_pool import InferencePoolSource
from backends.discovery.kubernetes.pods import KSERVE_PORT, PodQuery, PodSource, kserve_host, kserve_selector
from backends.discovery.kubernetes.slices import SliceQuery, SliceSource
from backends.discovery.kubernetes.watch import ClusterAccess, LabelRule
from backends.discovery.probe import Prober, poll
from backends.fetch import FetchError, fetch
from backends.load_reports import Decode
from backends.lora.loader import LoraLoader
from backends.ports import Upstream
from backends.reach import Reach, networks_of
from backends.signals import Signals
from domain.clock import Clock
from domain.membership import FOUND, Member, MemberSource
from gateway.config.discover import DiscoverSettings, KubernetesSettings, PodLabelSettings
from gateway.config.load import PoolSettings, Settings
from gateway.config.secrets import read_reference
from gateway.config.trust import TlsFiles
from gateway.deps import Deps
from gateway.fleet.health import FleetWatch, HealthWatch
from gateway.fleet.kv_events import CountKv, KvListener, KvWatch
from gateway.fleet.load_push import CountPush, LoadListener, LoadWatch
from gateway.fleet.loops import ZeroMq
from gateway.fleet.membership import Membership, StaticSource
from gateway.fleet.registry import Registry
from gateway.fleet.roster import Attach, Detach, Roster
from gateway.fleet.signals import SignalBoard, SignalWatch
from gateway.fleet.sources import FileSource, LastGood, backends_files, read_orders
from gateway.placement.destination import endpoint_of
from gateway.placement.pool_state import PoolStates
from gateway.placement.salts import root_of
from gateway.process.supervisor import WorkerSlot
from gateway.process.worker_link import supervision
from gateway.sync.engine_tls import EngineTlsWatch
from routing.prefix.engine_blocks import RootOf

POLL_CONNECTIONS: Final = 2
"""Polls have a connection pool of their own, so that a backend whose connections are all busy still answers them."""

SIGNALS_WITHIN_S: Final = 1.0
"""Time limit for one reading of a metrics page."""

MAX_SIGNALS_BYTES: Final = 1024 * 1024
"""A metrics page has 20 to 300 KB; it is parsed in one turn of the event loop."""


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts token, CA and namespace of a pod's service account."""


@dataclass(frozen=True, slots=True)
class FleetParts:
    """The parts that keep one worker's fleet."""

    roster: Roster
    membership: Membership
    fleet_watch: FleetWatch
    health_watch: HealthWatch
    signal_watch: SignalWatch
    kv_watch: KvWatch
    load_watch: LoadWatch
    zeromq: ZeroMq
    tls_watch: EngineTlsWatch

    async def learn(self) -> None:
        """Read every source and poll every backend once; afterwards every backend is known to be up or down."""
        await self.membership.first()
        await self.fleet_watch.first_round()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """The coroutines that have to run as long as the worker serves."""
        return [
            self.membership.run(),
            self.roster.run(),
            self.fleet_watch.run(),
            self.health_watch.run(),
            self.signal_watch.run(),
            self.kv_watch.run(),
            self.load_watch.run(),
            *self.tls_watch.loops(),
        ]

    async def close(self) -> None:
        """Close every connection to engines."""
        await self.membership.close()
        await self.roster.close()
        await self.kv_watch.close()
        await self.load_watch.close()
        self.zeromq.close()


class OwnPorts:
    """The ports of our own listeners. The supervisor writes them to the run directory when all are bound, which may be after the
    reading process has started; so they are looked up at each use until they are known."""

    def __init__(self, settings: Settings, slot: WorkerSlot) -> None:
        self._run_dir = Path(slot.run_dir)
        self._ports = {slot.sock.getsockname()[1], settings.data.bind_address[1], settings.admin.bind_address[1]}
        self._known = False

    def __contains__(self, port: object) -> bool:
        if not self._known and (supervised := supervision(self._run_dir)) is not None:
            self._known = True
            self._ports |= {supervised.data_port, supervised.admin_port}
        return port in self._ports


def reach_of(settings: Settings, own_ports: Container[int]) -> Reach:
    """The addresses that backends from DNS and the admin port may have."""
    return Reach(networks_of(settings.engines.register_networks), own_ports, is_local)


def fleet_for(
    settings: Settings,
    deps: Deps,
    *,
    registered: MemberSource | None = None,
    run_dir: Path | None = None,
    own_ports: Container[int] = frozenset(),
    count_kv: CountKv = lambda pool, backend, batches, gaps: None,
    count_push: CountPush = lambda pool, backend, reports, gaps: None,
) -> FleetParts:
    """The parts that keep a worker's fleet; the fleet is empty until `learn`.

    Args:
        registered: the source of registered backends; None where there is no store.
        run_dir: where drains of this gateway and the sources' last answers are saved.
        own_ports: ports of our own listeners.
        count_kv: called with (pool, backend, batches, gaps) as KV events come.
        count_push: called with (pool, backend, reports, gaps) as engines push their load.
    """
    upstreams = _Upstreams(settings, deps, reach_of(settings, own_ports))
    engines = settings.engines
    at_rest = partial(_at_rest, deps)
    fleet_watch = FleetWatch(deps.live, engines.poll_s, deps.clock, deps.rng, deps.loras, at_rest)
    deps.live.contacts.on_found = partial(_wake_queue, deps.pool_states)
    health_watch = HealthWatch(deps.live, deps.pool_states, deps.watch, engines.first_token_base_s, deps.clock)
    signal_board = SignalBoard(deps.live, deps.pool_states)
    zeromq = ZeroMq()
    signal_watch = SignalWatch(deps.live, signal_board, engines.signals_s, deps.clock, deps.rng)
    kv_listener = KvListener(deps, upstreams.reach, count_kv, zeromq, _rooted(settings, deps))
    load_listener = LoadListener(deps, upstreams.reach, _decoders(settings), signal_board, count_push, zeromq)
    attach: tuple[Attach, ...] = (
        partial(_located, deps.live.endpoints),
        partial(_judged, upstreams, health_watch),
        partial(_polled, upstreams, fleet_watch),
        partial(_read, upstreams, signal_watch),
        kv_listener.attach,
        load_listener.attach,
    )
    roster = Roster(deps, upstreams.for_requests, attach, settings.drain.grace_s)
    last_good = None if run_dir is None else LastGood(run_dir, deps.wall)
    orders: Callable[[], Any] = dict if run_dir is None else partial(read_orders, run_dir)
    sources = [*_sources(settings, deps), *([registered] if registered else [])]
    membership = Membership(sources, upstreams.pools, roster, deps.clock, orders, last_good)
    kv_watch, load_watch = kv_listener.watch, load_listener.watch
    return FleetParts(roster, membership, fleet_watch, health_watch, signal_watch, kv_watch, load_watch, zeromq, upstreams.tls)


def _at_rest(deps: Deps, pool: str) -> bool:
    return deps.pool_states[pool].rest.at_rest(deps.clock())


def _decoders(settings: Settings) -> dict[str, Decode]:
    """How pushed load reports are decoded, by pool; only pools whose engines push any."""
    return {pool.name: read for pool in settings.pools if (read := DIALECTS[pool.dialect].read_report) is not None}


def _rooted(settings: Settings, deps: Deps) -> dict[str, RootOf]:
    """How to compute the root of a prompt chain from an engine's event, by pool; only pools whose prompts the gateway can tokenize."""
    return {pool.name: partial(_root, pool, deps.salt_secret, deps.loras) for pool in settings.pools if deps.prompts.tokens_of(pool.name)}


def _root(pool: PoolSettings, secret: bytes, loras: LoraLoader, lora: str | None, salt: str | None) -> int | None:
    """A `routing.prefix.engine_blocks.RootOf`. Every prompt of ours is salted, so a chain without salt belongs to no request of ours."""
    digest = loras.digest_of(pool.name, lora) if lora else ""
    return None if digest is None or not salt else root_of(pool.model, pool.revision, digest, salt, secret)


def _sources(settings: Settings, deps: Deps) -> list[MemberSource]:
    static = [b.member(pool.name, "static") for pool in settings.pools for b in pool.backends]
    sources: list[MemberSource] = [StaticSource(static)]
    sources += [FileSource(pool, path, os.environ) for pool, path in backends_files(settings).items()]
    for pool in settings.pools:
        if pool.discover is not None and pool.discover.dns is not None:
            d = pool.discover
            lookup = system_lookup(d.dns or "", d.port)
            sources.append(_ported(DnsSource(pool.name, d.dns or "", d.scheme, d.every_s, lookup), d))
        if pool.discover is not None and (k := pool.discover.kubernetes) is not None:
            sources.append(_ported(_of_kubernetes(settings, pool, k, deps), pool.discover))
    return sources


def _ported(source: MemberSource, written: DiscoverSettings) -> MemberSource:
    return source if written.ports is None else PortedSource(source, written.ports.value())


def _of_kubernetes(settings: Settings, pool: PoolSettings, written: KubernetesSettings, deps: Deps) -> MemberSource:
    assert pool.discover is not None
    namespace = written.namespace or _text_of(SERVICE_ACCOUNT / "namespace") or "default"
    scheme, grace_s = pool.discover.scheme, settings.drain.grace_s
    access = cluster_access(written, settings.base_dir, os.environ)
    labels = written.labels or PodLabelSettings.model_construct()
    # a pool that says no revision has "1", which is nobody's word for what its engines serve
    revision = pool.revision if labels.revision or "revision" in pool.model_fields_set else ""
    rule = LabelRule(revision, labels.pool or "", labels.revision)
    if written.service is not None or written.selector is not None:
        slices = SliceQuery(
            pool.name, namespace, written.service or "", written.selector or "", written.port, scheme, written.role, grace_s, rule
        )
        return SliceSource(slices, access, deps.clock, deps.rng)
    ports = () if written.port is None else (written.port,)
    pods = PodQuery(pool.name, namespace, written.pods or "", ports, scheme, role=written.role, grace_s=grace_s, rule=rule)
    if written.inference_pool is not None:
        return InferencePoolSource(pods, written.inference_pool, access, deps.clock, deps.rng)
    if (service := written.llm_inference_service) is not None:
        pods = msgspec.structs.replace(
            pods, selector=kserve_selector(service), host=kserve_host(service, namespace), fallback_port=KSERVE_PORT
        )
    return PodSource(pods, f"{namespace}/{written.in_words}", access, deps.clock, deps.rng)


def cluster_access(written: KubernetesSettings, base_dir: Path, environ: Mapping[str, str]) -> ClusterAccess:
    """The API server of the settings; without an address the one of the cluster that this process runs in."""
    if written.address is not None:
        token_file, ca = (None if name is None else str(base_dir / name) for name in (written.token_file, written.ca))
        return ClusterAccess(written.address, token_file, ca)
    host = environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    shown = f"[{host}]" if ":" in host else host
    token_file = str(base_dir / (written.token_file or SERVICE_ACCOUNT / "token"))
    ca = str(base_dir / (written.ca or SERVICE_ACCOUNT / "ca.crt"))
    return ClusterAccess(f"https://{shown}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}", token_file, ca)


def _text_of(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def registry_for(settings: Settings, slot: WorkerSlot) -> Registry:
    """The registry that the admin port changes the fleet with; built in the admin process, inside its event loop."""
    loop = asyncio.get_running_loop()
    return Registry(
        pools=[pool.name for pool in settings.pools],
        pushing=_decoders(settings),
        static=[b.id for pool in settings.pools for b in pool.backends],
        reach=reach_of(settings, OwnPorts(settings, slot)),
        resolve=lambda host, port: resolved(host, port, loop),
        run_dir=Path(slot.run_dir),
        grace_s=settings.drain.grace_s,
        wall=time.time,
    )


class _Upstreams:
    """Makes the upstreams to backends."""

    def __init__(self, settings: Settings, deps: Deps, reach: Reach) -> None:
        self.settings = settings
        self.deps = deps
        self.reach = reach
        self.pools: dict[str, PoolSettings] = {pool.name: pool for pool in settings.pools}
        # read once: a secret that goes away later must not end a worker because a backend joins
        self._keys = {pool.name: _authorization(settings, pool) for pool in settings.pools}
        files = {pool.name: TlsFiles.of(pool.tls, settings.base_dir) for pool in settings.pools if pool.tls is not None}
        self.tls = EngineTlsWatch(files, deps.wall)

    def for_requests(self, member: Member) -> Upstream:
        engines = self.settings.engines
        target = self._target(member, engines.max_connections_per_backend)
        if engines.client == "aiohttp":
            # imported only when chosen: aiohttp is an extra, and costs a worker 15 MB
            from backends.clients.aiohttp_client import AiohttpUpstream

            return AiohttpUpstream(target, self.deps.clock, self.deps.loop)
        return RelayUpstream(target, self.deps.clock, self.deps.loop)

    def for_questions(self, member: Member) -> RelayUpstream:
        return RelayUpstream(self._target(member, POLL_CONNECTIONS), self.deps.clock, self.deps.loop)

    def _target(self, member: Member, max_connections: int) -> EngineEndpoint:
        return endpoint(
            member.url,
            authorization=self._keys[member.pool],
            connect_timeout_s=self.settings.engines.connect_timeout_s,
            idle_s=self.settings.engines.idle_connection_s,
            max_connections=max_connections,
            address=member.address,
            reach=self.reach if member.owner in FOUND else None,
            tls=self.tls.of(member.pool),
        )


def _wake_queue(pool_states: PoolStates, backend_id: str) -> None:
    """Dispatch the requests that wait for a backend that can be reached again."""
    pool_state = pool_states.of(backend_id)
    if pool_state is not None and pool_state.load_table.freed is not None:
        pool_state.load_table.freed()


def _located(endpoints: dict[str, str], member: Member) -> Detach:
    endpoints[member.id] = endpoint_of(member)
    return partial(_forgotten, endpoints, member.id)


def _forgotten(endpoints: dict[str, str], backend_id: str) -> Awaitable[None]:
    endpoints.pop(backend_id, None)
    return _nothing()


def _judged(upstreams: _Upstreams, watch: HealthWatch, member: Member) -> Detach:
    pool = upstreams.pools[member.pool]
    upstream = upstreams.for_questions(member)
    names = partial(watch.names_of, member.id)
    within_s = upstreams.settings.engines.first_token_base_s
    single_role = member.role != "both"
    watch.add(member.id, Prober(upstream, DIALECTS[pool.dialect], pool.model, within_s, names, single_role=single_role), upstream)
    return partial(watch.remove, member.id)


def _polled(upstreams: _Upstreams, watch: FleetWatch, member: Member) -> Detach:
    pool = upstreams.pools[member.pool]
    upstream = upstreams.for_questions(member)
    watch.add(member.pool, member.id, partial(poll, upstream, DIALECTS[pool.dialect], pool.model, pool.pin), upstream)
    return partial(watch.remove, member.pool, member.id)


def _read(upstreams: _Upstreams, watch: SignalWatch, member: Member) -> Detach:
    dialect = DIALECTS[upstreams.pools[member.pool].dialect]
    if dialect.signals_path is None or dialect.read_signals is None:
        return _nothing
    upstream = upstreams.for_questions(member)
    read = dialect.read_signals if dialect.signals_reader is None else dialect.signals_reader()
    watch.add(member.id, partial(_read_signals, upstream, dialect.signals_path, read, upstreams.deps.clock), upstream)
    return partial(watch.remove, member.id)


def _nothing() -> Awaitable[None]:
    return asyncio.sleep(0)


async def _read_signals(upstream: Upstream, path: str, read: Callable[[bytes, float], Signals], clock: Clock) -> Signals:
    reply = await fetch(upstream, path, timeout_s=SIGNALS_WITHIN_S, max_bytes=MAX_SIGNALS_BYTES)
    if reply.status != 200:
        raise FetchError(f"{path} answers {reply.status}")
    return read(reply.body, clock())


def _authorization(settings: Settings, pool: PoolSettings) -> str | None:
    return None if pool.api_key is None else f"Bearer {read_reference(pool.api_key, settings.base_dir, os.environ)}"
