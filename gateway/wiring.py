"""The only builder of adapters: from checked configuration to what the steps work with. One call per worker process."""

import asyncio
import hashlib
import hmac
import os
import random
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from backends.attempt import RetryBudget
from backends.clients.endpoint import Endpoint, endpoint
from backends.clients.relay import RelayUpstream
from backends.dialects import DIALECTS
from backends.discovery.poll import poll
from backends.discovery.probe import Prober
from backends.fetch import FetchError, fetch
from backends.lora_loader import LoadDone, LoraLoader, Stand
from backends.loras import Adapter
from backends.ports import Upstream
from backends.signals import Signals
from domain.clock import Clock
from gateway.adapters import adapters_in_use
from gateway.deps import Deps, Live, RequestIds, Watch
from gateway.fleet_watch import FleetWatch, Poll
from gateway.health_watch import HealthWatch
from gateway.http.edge.patience import Patience
from gateway.key_watch import KeyWatch
from gateway.kv_watch import KvWatch
from gateway.secrets import read_reference
from gateway.settings import PoolSettings, Settings
from gateway.signal_watch import Read, SignalWatch
from gateway.story import Record
from policies.compile import PolicySet
from routing.fleet import Backend, Fleet, Pool
from routing.load import Load
from tenancy.keys import KeyRing, Pepper
from tenancy.stores.memory import MemoryLedger
from tenancy.stores.sql import SqlKeyStore, StoreError, migrate, open_engine

__all__ = [
    "StoreError",
    "deps_for",
    "fleet_of",
    "fleet_watch_for",
    "health_watch_for",
    "key_watch_for",
    "kv_watch_for",
    "prepare_store",
    "signal_watch_for",
]


def fleet_of(settings: Settings) -> Fleet:
    """The configured fleet, nothing known of it yet."""
    return Fleet(
        pools={
            pool.name: Pool(
                name=pool.name,
                model=pool.model,
                revision=pool.revision,
                dialect=pool.dialect,
                backends=tuple(Backend(b.id, pool.name) for b in pool.backends),
            )
            for pool in settings.pools
        }
    )


def deps_for(
    settings: Settings,
    policies: PolicySet,
    keys: KeyRing,
    pepper: Pepper,
    *,
    observe: Callable[[Record], None],
    log_defect: Callable[[BaseException, str], None],
    observe_load: Callable[[LoadDone], None] = lambda _: None,
) -> Deps:
    """Everything a worker's requests touch. Must be called inside the worker's running loop."""
    loop = asyncio.get_running_loop()
    live = Live(keys, policies, fleet_of(settings))
    upstreams = {b.id: _upstream(settings, pool, b.url, loop) for pool in settings.pools for b in pool.backends}
    return Deps(
        live=live,
        clock=time.monotonic,
        wall=time.time,
        rng=random.Random(secrets.randbits(64)),
        loop=loop,
        new_id=RequestIds(secrets.token_hex(5)),
        load=Load(b.id for pool in settings.pools for b in pool.backends),
        budget=RetryBudget(),
        ledger=MemoryLedger(),
        upstreams=upstreams,
        loras=_lora_loader(settings, live, upstreams, observe_load),
        dialects={pool.name: DIALECTS[pool.dialect] for pool in settings.pools},
        patience=_patience(settings),
        watch=Watch(),
        observe=observe,
        log_defect=log_defect,
        # derived, so that one secret configures both and neither tells the other
        salt_secret=hmac.new(pepper.secret, b"tidegate cache salt v1", hashlib.sha256).digest(),
        started_unix=int(time.time()),
        cors_origins=frozenset(settings.data.cors_origins),
    )


def _lora_loader(settings: Settings, live: Live, upstreams: Mapping[str, Upstream], observe_load: Callable[[LoadDone], None]) -> LoraLoader:
    stands = {
        pool.name: Stand(
            {lora.name: Adapter(lora.name, lora.digest, lora.path) for lora in pool.loras}, pool.max_loras, DIALECTS[pool.dialect]
        )
        for pool in settings.pools
        if pool.loras
    }
    busy = partial(adapters_in_use, live, time.monotonic)
    return LoraLoader(stands, upstreams, busy, time.monotonic, settings.engines.lora_load_s, observe_load)


POLL_CONNECTIONS: Final = 2
"""Polls have connections of their own, so that a backend whose connections are all busy still answers them."""


def fleet_watch_for(settings: Settings, deps: Deps) -> FleetWatch:
    """The poller of every backend."""
    polls: dict[tuple[str, str], Poll] = {}
    ways: list[Upstream] = []
    for pool in settings.pools:
        for backend in pool.backends:
            way = RelayUpstream(_target(settings, pool, backend.url, POLL_CONNECTIONS), deps.clock, deps.loop)
            ways.append(way)
            polls[pool.name, backend.id] = partial(poll, way, DIALECTS[pool.dialect], pool.model)
    return FleetWatch(deps.live, polls, settings.engines.poll_s, deps.clock, deps.rng, ways, deps.loras)


def health_watch_for(settings: Settings, deps: Deps) -> HealthWatch:
    """What judges every backend by its progress."""
    within_s = settings.engines.first_token_base_s
    watch = HealthWatch(deps.live, deps.load, deps.watch, within_s, deps.clock)
    for pool in settings.pools:
        for backend in pool.backends:
            way = RelayUpstream(_target(settings, pool, backend.url, POLL_CONNECTIONS), deps.clock, deps.loop)
            watch.add(backend.id, Prober(way, DIALECTS[pool.dialect], pool.model, within_s), way)
    return watch


SIGNALS_WITHIN_S: Final = 1.0
MAX_SIGNALS_BYTES: Final = 4 * 1024 * 1024
"""A metrics page has 20 to 300 KB."""


def signal_watch_for(settings: Settings, deps: Deps) -> SignalWatch:
    """The reader of every backend whose dialect reports signals."""
    reads: dict[str, Read] = {}
    ways: list[Upstream] = []
    for pool in settings.pools:
        dialect = DIALECTS[pool.dialect]
        if dialect.signals_path is None or dialect.read_signals is None:
            continue
        for backend in pool.backends:
            way = RelayUpstream(_target(settings, pool, backend.url, POLL_CONNECTIONS), deps.clock, deps.loop)
            ways.append(way)
            reads[backend.id] = partial(_read_signals, way, dialect.signals_path, dialect.read_signals, deps.clock)
    return SignalWatch(deps.live, deps.load, reads, settings.engines.signals_s, deps.clock, deps.rng, ways)


async def _read_signals(way: Upstream, path: str, read: Callable[[bytes, float], Signals], clock: Clock) -> Signals:
    reply = await fetch(way, path, timeout_s=SIGNALS_WITHIN_S, max_bytes=MAX_SIGNALS_BYTES)
    if reply.status != 200:
        raise FetchError(f"{path} answers {reply.status}")
    return read(reply.body, clock())


def kv_watch_for(settings: Settings, deps: Deps, count: Callable[[str, str, int, int], None]) -> KvWatch:
    """The listener to every backend that publishes KV events; `count` is told of (pool, backend, batches, gaps)."""
    publishing = {b.id: (pool.name, b.kv_events) for pool in settings.pools for b in pool.backends if b.kv_events is not None}
    if not publishing:
        return KvWatch(deps.live, {})
    # imported only when there is something to hear: ZeroMQ and its thread cost a worker 10 MB
    import zmq

    from backends.clients.kv_subscriber import KvSubscriber
    from backends.kv_blocks import HeldBlocks
    from backends.kv_stream import KvStream

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    subscriptions = {
        backend: KvSubscriber(
            context,
            KvStream(HeldBlocks(), can_replay=told.replay is not None),
            told.endpoint,
            told.replay,
            bind=told.bind,
            clock=deps.clock,
            loop=deps.loop,
        )
        for backend, (_, told) in publishing.items()
    }

    def counted(backend: str, batches: int, gaps: int) -> None:
        count(publishing[backend][0], backend, batches, gaps)

    return KvWatch(deps.live, subscriptions, counted, partial(context.destroy, 0))


async def prepare_store(settings: Settings) -> None:
    """Bring the store's schema to this version. Raises StoreError when the database cannot be used."""
    engine = open_engine(settings.sql_url)
    try:
        await migrate(engine)
    finally:
        await engine.dispose()


def key_watch_for(settings: Settings, pepper: Pepper) -> KeyWatch:
    """The key store's watcher; the schema has been prepared."""
    engine = open_engine(settings.sql_url)
    return KeyWatch(SqlKeyStore(engine), pepper, engine.dispose)


def _upstream(settings: Settings, pool: PoolSettings, url: str, loop: asyncio.AbstractEventLoop) -> Upstream:
    target = _target(settings, pool, url, settings.engines.max_connections_per_backend)
    if settings.engines.client == "aiohttp":
        # imported only when chosen: aiohttp is an extra, and costs a worker 15 MB
        from backends.clients.aiohttp_client import AiohttpUpstream

        return AiohttpUpstream(target, time.monotonic, loop)
    return RelayUpstream(target, time.monotonic, loop)


def _target(settings: Settings, pool: PoolSettings, url: str, max_connections: int) -> Endpoint:
    return endpoint(
        url,
        authorization=_authorization(settings, pool),
        connect_timeout_s=settings.engines.connect_timeout_s,
        idle_s=settings.engines.idle_connection_s,
        max_connections=max_connections,
    )


def _authorization(settings: Settings, pool: PoolSettings) -> str | None:
    return None if pool.api_key is None else f"Bearer {read_reference(pool.api_key, settings.base_dir, os.environ)}"


def _patience(settings: Settings) -> Patience:
    engines = settings.engines
    return Patience(
        first_token_base_s=engines.first_token_base_s,
        first_token_tokens_per_s=engines.first_token_tokens_per_s,
        first_token_cap_s=engines.first_token_cap_s,
        token_gap_s=engines.token_gap_s,
        plain_timeout_s=engines.plain_timeout_s,
        heartbeat_s=engines.heartbeat_s,
        slow_reader_s=settings.data.limits.slow_reader_s,
    )
