"""Builds the counters of limits: in this process, or on a shared store with counters of this process to fall back on."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.part_watch import GONE_S
from gateway.settings import Settings
from gateway.steady_clock import SteadyWall
from gateway.worker_link import look
from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.hold import LimitUsage
from tenancy.limits import Group
from tenancy.ports import Counters, Presence
from tenancy.seeds import Tallies
from tenancy.stores.fallback_counters import FallbackCounters
from tenancy.stores.memory import MemoryCounters, MemoryPresence, MemoryRoom
from tenancy.stores.valkey import ValkeyCounters, ValkeyPresence
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.embedded import SOCKET_NAME, CannotStartStore, EmbeddedServer, server_binary
from tenancy.stores.valkey.watch import Epoch, StoreWatch

__all__ = ["CannotStartStore", "CounterParts", "CounterView", "Epoch", "counters_answer", "counters_for", "embedded_server"]

START_S = 5.0
"""How long a worker waits for the shared store before it begins with its own counters. An embedded store starts at the same time."""
TURN_S = 45.0
"""How long a process keeps the turn to reconcile counters with the ledger without asking for it again."""
LATE_S = 180.0
"""How long a host's mark that some of its usage is not in the ledger yet lasts: for the current reconciliation and the next."""
_TURN = (b"tidegate:{0}:turn", b"tidegate:{0}:late")


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
    """The counters of one worker. When a shared store does not answer within `START_S`, they begin with counters of this process.

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
    await scripts.start(START_S)
    watches: list[StoreWatch] = []
    member = secrets.token_hex(8)
    guarded = FallbackCounters(
        ValkeyCounters(scripts, max_labels), lambda: MemoryCounters(_steady_wall(), max_labels), lambda: watches[0].replicas, time.monotonic
    )
    watch = StoreWatch(
        scripts, member, time.monotonic, rebuild=rebuild, deliver=guarded.deliver, heard=guarded.heard, failed=guarded.failed
    )
    watches.append(watch)
    await watch.look()

    async def turn(late: bool) -> tuple[bool, bool]:
        ours, anywhere = await scripts.run("turn", _TURN, (member.encode(), int(TURN_S * 1e3), int(LATE_S * 1e3) if late else 0))
        return bool(ours), bool(anywhere)

    # tallies get counters of their own: those that decide cache their packed groups
    presence = ValkeyPresence(scripts, member, GONE_S)
    return CounterParts(guarded, (watch.run,), scripts.close, guarded, ValkeyCounters(scripts), turn, lambda: watch.begun, presence)


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
    return SteadyWall(time.time, time.monotonic)


async def _nothing() -> None:
    return


async def _always(late: bool) -> tuple[bool, bool]:
    return True, late
