"""Builds the adapters that live as long as the process: from checked configuration to what the steps work with.

Those that come and go with backends are built by `gateway/fleet/wiring.py`; nobody else builds any.
"""

import asyncio
import hashlib
import hmac
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from backends.attempt import RetryBudget
from backends.dialects import DIALECTS
from backends.lora_loader import LoadDone, LoraLoader, Stand
from backends.loras import Adapter
from backends.ports import Upstream
from domain.membership import MemberStore
from gateway.adapters import adapters_in_use
from gateway.deps import Deps, Live, RequestIds, Watch
from gateway.http.edge.patience import Patience
from gateway.key_watch import KeyWatch
from gateway.settings import Settings
from gateway.story import Record
from policies.compile import PolicySet
from routing.fleet import Fleet, Pool
from routing.load import Load
from tenancy.keys import KeyRing, Pepper
from tenancy.ports import KeySource
from tenancy.stores.memory import MemoryLedger
from tenancy.stores.sql import SqlKeyStore, SqlMemberStore, StoreError, migrate, open_engine

__all__ = ["StoreError", "Stores", "deps_for", "fleet_of", "key_watch_for", "open_stores", "prepare_store"]


def fleet_of(settings: Settings) -> Fleet:
    """The configured pools, nobody in them yet: `gateway.fleet.roster` lets backends in."""
    return Fleet(
        pools={
            pool.name: Pool(
                name=pool.name,
                model=pool.model,
                revision=pool.revision,
                dialect=pool.dialect,
                backends=(),
            )
            for pool in settings.pools
        }
    )


@dataclass(frozen=True, slots=True)
class Stores:
    """The adapters of one database, over one set of connections."""

    keys: KeySource
    members: MemberStore
    close: Callable[[], Awaitable[None]]


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
    upstreams: dict[str, Upstream] = {}
    return Deps(
        live=live,
        clock=time.monotonic,
        wall=time.time,
        rng=random.Random(secrets.randbits(64)),
        loop=loop,
        new_id=RequestIds(secrets.token_hex(5)),
        load=Load(()),
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


async def prepare_store(settings: Settings) -> None:
    """Bring the store's schema to this version. Raises StoreError when the database cannot be used."""
    engine = open_engine(settings.sql_url)
    try:
        await migrate(engine)
    finally:
        await engine.dispose()


def open_stores(settings: Settings) -> Stores:
    """What is kept in SQL; the schema has been prepared."""
    engine = open_engine(settings.sql_url)
    return Stores(SqlKeyStore(engine), SqlMemberStore(engine), engine.dispose)


def key_watch_for(stores: Stores, pepper: Pepper) -> KeyWatch:
    """The key store's watcher; closing it lets the connections of all stores go."""
    return KeyWatch(stores.keys, pepper, stores.close)


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
