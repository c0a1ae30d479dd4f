"""Builds the counters of limits, in this process or on a shared store with counters of this process to fall back on.

Builds the counters of limits: in this process, or on a shared store with counters of this process to fall back on.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.config.load import Settings
from gateway.ledger.reconcile import LimitsState, Reconciler
from gateway.ledger.writer import UsageWriter
from gateway.placement.concurrency import GONE_S, ReplicaShare, ReplicaWatch
from gateway.process.worker_link import look
from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.directory import Directory
from tenancy.hold import LimitUsage
from tenancy.limits import Group
from tenancy.ports import Counters, CountersAway, Presence
from tenancy.seeds import Tallies
from tenancy.stores.fallback_counters import FallbackCounters
from tenancy.stores.kept_refusals import KeptRefusals
from tenancy.stores.memory import MemoryCounters, MemoryPresence, MemoryRoom, SteadyWall, up_time
from tenancy.stores.under_way import UnbookedUsage
from tenancy.stores.valkey import ValkeyCounters, ValkeyPresence
from tenancy.stores.valkey.channel import ValkeyChannel
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.embedded import SOCKET_NAME, CannotStartStore, EmbeddedServer, server_binary
from tenancy.stores.valkey.watch import Epoch, StoreWatch
from tenancy.usage import SpendReader

__all__ = ["CannotStartStore", "CounterParts", "CounterView", "Epoch", "counters_answer", "counters_for", "embedded_server"]

STORE_START_S = 5.0
"""How long a worker waits for the shared store before it begins with its own counters. An embedded store starts at the same time."""
RECONCILE_TURN_S = 45.0
"""How long a process keeps the turn to reconcile counters with the ledger without asking for it again."""
RECONCILE_LATE_S = 180.0
"""How long a host's mark that some of its usage is not in the ledger yet lasts: for the current reconciliation and the next."""
_TURN_KEYS = (b"tidegate:{0}:turn", b"tidegate:{0}:late")


@dataclass(frozen=True, slots=True)
class CounterParts:
    """The counters of one worker, and everything that runs beside them."""

    counters: Counters
    loops: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
    """Background loops to run for as long as the counters are used."""
    close: Callable[[], Awaitable[None]]
    guarded: FallbackCounters | None
    """Whether, why and for how long this process counts by itself, and the usage it could not deliver; None for `memory://`."""
    tallies: Tallies
    """Sets the same counters from the ledger."""
    turn: Callable[[bool], Awaitable[tuple[bool, bool]]]
    """Asks for the turn to reconcile; the argument says whether usage of this host is not in the ledger yet. Returns whether it is this
    process's turn, and whether usage of any host is not in the ledger yet. Raises CountersAway."""
    began_anew: Callable[[], bool]
    """Whether the counters lack what was counted earlier."""
    presence: Presence
    """The list of the live workers of the deployment."""


def embedded_server(settings: Settings, run_dir: Path) -> EmbeddedServer:
    """The gateway's own Valkey, not started yet."""
    return EmbeddedServer(Path(settings.counter_url.folder), run_dir / SOCKET_NAME)


async def counters_for(settings: Settings, run_dir: Path, rebuild: Callable[[Epoch], Awaitable[None]]) -> CounterParts:
    """The counters of one worker. When a shared store does not answer within `STORE_START_S`, they begin with counters of this process.

    Args:
        rebuild: awaited in one of all workers when the store, or a shard of it, lost its contents.
    """
    url = settings.counter_url
    max_labels = settings.stores.end_users_per_tenant
    if url.kind is StoreKind.MEMORY:
        counters = MemoryCounters(_steady_wall(), max_labels)
        alone = MemoryPresence(MemoryRoom(time.monotonic, GONE_S), "alone")
        return CounterParts(counters, (), _nothing, None, counters, _always, lambda: True, alone)
    scripts = ValkeyScripts(_at_socket(url, run_dir))
    await scripts.start(STORE_START_S)
    watches: list[StoreWatch] = []
    member = secrets.token_hex(8)
    shared = KeptRefusals(ValkeyCounters(scripts, max_labels), time.monotonic)
    guarded = FallbackCounters(shared, lambda: MemoryCounters(_steady_wall(), max_labels), lambda: watches[0].replicas, time.monotonic)
    watch = StoreWatch(
        scripts, member, time.monotonic, rebuild=rebuild, deliver=guarded.deliver, heard=guarded.store_answered, failed=guarded.failed
    )
    watches.append(watch)
    await watch.look()

    async def turn(late: bool) -> tuple[bool, bool]:
        ours, anywhere = await scripts.run(
            "turn", _TURN_KEYS, (member.encode(), int(RECONCILE_TURN_S * 1e3), int(RECONCILE_LATE_S * 1e3) if late else 0)
        )
        return bool(ours), bool(anywhere)

    # tallies get counters of their own: those that decide cache their packed groups
    presence = ValkeyPresence(scripts, member, GONE_S)
    return CounterParts(guarded, (watch.run,), scripts.close, guarded, ValkeyCounters(scripts), turn, lambda: watch.began_anew, presence)


def channel_for(settings: Settings, generation: int) -> ValkeyChannel | None:
    """The channel to the gateways of other hosts that share this one's store and pepper; None where there is none.

    Args:
        generation: of the hashes of prompts, which depends on the pepper.
    """
    return ValkeyChannel(settings.counter_url, f"tidegate:hosts:{generation:08x}") if settings.tells_hosts else None


class CounterView:
    """Reads the counters from the admin process, which makes no decisions."""

    def __init__(self, settings: Settings, run_dir: Path) -> None:
        url = settings.counter_url
        self._run_dir = run_dir
        self._most = settings.stores.end_users_per_tenant
        self._scripts = None if url.kind is StoreKind.MEMORY else ValkeyScripts(_at_socket(url, run_dir))

    async def start(self) -> None:
        """Connect, and keep trying in the background."""
        if self._scripts is not None:
            await self._scripts.start(0.0)

    async def look(self, group: Group) -> list[LimitUsage]:
        """The state of the limits of a group. Raises CountersAway."""
        if self._scripts is None:
            return await look(self._run_dir, group)
        # new counters for each look: an instance caches the packed groups of the directory
        return await ValkeyCounters(self._scripts, self._most).look(group)

    async def close(self) -> None:
        """End every connection."""
        if self._scripts is not None:
            await self._scripts.close()


async def counters_answer(settings: Settings) -> str | None:
    """None when the counter store of these settings can be used from here, else the reason.

    An embedded store starts with the gateway, so only its program is looked for.
    """
    url = settings.counter_url
    if url.kind is StoreKind.EMBEDDED:
        try:
            await asyncio.to_thread(server_binary)
        except CannotStartStore as error:
            return str(error)
    elif url.kind is not StoreKind.MEMORY:
        scripts = ValkeyScripts(url)
        try:
            if not await scripts.start():
                return scripts.why
        finally:
            await scripts.close()
    return None


def _at_socket(url: CounterUrl, run_dir: Path) -> CounterUrl:
    if url.kind is not StoreKind.EMBEDDED:
        return url
    return msgspec.structs.replace(url, kind=StoreKind.SINGLE, addresses=(Address(str(run_dir / SOCKET_NAME), 0),))


def _steady_wall() -> SteadyWall:
    return SteadyWall(time.time, up_time)


async def _nothing() -> None:
    return


async def _always(late: bool) -> tuple[bool, bool]:
    return True, late


log = structlog.get_logger("tidegate.reconcile")


class LimitBooks:
    """The counters of one worker: `open` and `begin` run before the first request, `loops` from then on, `close` after the last."""

    def __init__(self, settings: Settings, spend: SpendReader, usage: UsageWriter | None) -> None:
        self._settings = settings
        self._spend = spend
        self._usage = usage
        self._parts: CounterParts | None = None
        self._reconciler: Reconciler | None = None

    async def open(self, run_dir: Path, directory: Callable[[], Directory]) -> Counters:
        """The counters; while a shared store is away, this worker's own counters decide."""
        parts = self._parts = await counters_for(self._settings, run_dir, self._began_anew)
        if self._usage is not None:
            usage = self._usage
            waiting = UnbookedUsage(self._settings.ledger_dir, lambda: usage.state().full, time.time)
            self._reconciler = Reconciler(self._spend, directory, parts.tallies, waiting, parts.turn, time.time, time.monotonic)
        return parts.counters

    async def begin(self) -> None:
        """Set new counters to the usage of the ledger, as far as it is known now."""
        parts = self._parts
        if parts is None or not parts.began_anew():
            return
        if self._reconciler is not None:
            await self._reconciler.begin()
        else:
            log.warning("limits over periods and for ever count from now on: there is no ledger (ledger.enabled)")

    def loops(self, share: Callable[[str, ReplicaShare], None], draining: Callable[[], bool]) -> list[Coroutine[Any, Any, None]]:
        """The background loops to run for as long as the counters are used. `share` and `draining` are those of `ReplicaWatch`."""
        assert self._parts is not None
        pools = [pool.name for pool in self._settings.pools]
        replicas = ReplicaWatch(self._parts.presence, pools, share, draining, time.monotonic)
        own_loops = [replicas.run(), *([self._reconciler.run()] if self._reconciler is not None else [])]
        return [*(loop() for loop in self._parts.loops), *own_loops]

    async def look(self, group: Group) -> list[LimitUsage]:
        """The state of the limits of a group. Raises CountersAway."""
        if self._parts is None:
            raise CountersAway("not started yet")
        return await self._parts.counters.look(group)

    def state(self, open_holds: int) -> LimitsState:
        """The state of the counters, for metrics."""
        parts = self._parts
        reconciled = self._reconciler.state() if self._reconciler is not None else None
        state = LimitsState(crowded=parts.counters.crowded if parts is not None else 0, open_holds=open_holds, reconciled=reconciled)
        if parts is None or (guarded := parts.guarded) is None:
            return state
        return msgspec.structs.replace(
            state,
            degraded=guarded.degraded,
            degraded_s=guarded.degraded_s,
            undelivered=guarded.undelivered,
            given_up=guarded.given_up,
        )

    async def close(self) -> None:
        """Close the connection to the store."""
        if self._parts is not None:
            await self._parts.close()

    async def _began_anew(self, epoch: Epoch) -> None:
        # only flags the reconciler: the caller watches the store and must not wait
        if not epoch.lost:
            log.warning("the counter store was restarted or replaced: its last writes may be missing; limits are set from the ledger")
        elif self._reconciler is None:
            log.info("the counter store is empty: limits count from now on")
        if self._reconciler is not None:
            self._reconciler.began_anew(empty=epoch.lost)
