"""Builds the counters of limits: in this process, or on a shared store with this process's own decisions for when that is away."""

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
from tenancy.counter_url import Address, CounterUrl, Kind
from tenancy.hold import LineState
from tenancy.limits import Group
from tenancy.ports import Counters, Presence
from tenancy.seeds import Tallies
from tenancy.stores.local import GuardedCounters
from tenancy.stores.memory import MemoryCounters, MemoryPresence, MemoryRoom
from tenancy.stores.valkey import ValkeyCounters, ValkeyPresence
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.embedded import SOCKET_NAME, CannotStartStore, EmbeddedServer, server_binary
from tenancy.stores.valkey.watch import Epoch, StoreWatch

__all__ = ["CannotStartStore", "CounterParts", "CounterView", "Epoch", "counters_answer", "counters_for", "embedded_server"]

START_S = 5.0
"""How long a worker waits for the shared store before it begins to decide alone. An embedded one starts beside it."""
TURN_S = 45.0
"""How long the turn to compare lasts without being asked for again."""
LATE_S = 180.0
"""How long it is remembered that some host's usage waits: for the comparison under way and the next."""
_TURN = (b"tidegate:{0}:turn", b"tidegate:{0}:late")


@dataclass(frozen=True, slots=True)
class CounterParts:
    """Counters and what belongs to them."""

    counters: Counters
    loops: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
    """To be run for as long as the counters are used."""
    close: Callable[[], Awaitable[None]]
    guarded: GuardedCounters | None
    """Whether and for how long decisions are this process's own, why, and what could not be delivered; None for `memory://`."""
    tallies: Tallies
    """The same counters, to be set from the ledger."""
    turn: Callable[[bool], Awaitable[tuple[bool, bool]]]
    """Whether comparing them is this process's turn, and whether some host's usage waits for the ledger; told whether ours does.
    Raises CountersAway."""
    began_anew: Callable[[], bool]
    """Whether what was counted before is not in them."""
    presence: Presence
    """Which workers of the deployment there are."""


def embedded_server(settings: Settings, run_dir: Path) -> EmbeddedServer:
    """The gateway's own Valkey, not started yet."""
    return EmbeddedServer(Path(settings.counter_url.folder), run_dir / SOCKET_NAME)


async def counters_for(settings: Settings, run_dir: Path, rebuild: Callable[[Epoch], Awaitable[None]]) -> CounterParts:
    """The counters of one worker. With a shared store that does not answer within `START_S` they begin on their own.

    Args:
        rebuild: awaited by one of all workers when the store, or a part of it, began anew.
    """
    url, most = settings.counter_url, settings.stores.end_users_per_tenant
    if url.kind is Kind.MEMORY:
        own = MemoryCounters(_steady_wall(), most)
        alone = MemoryPresence(MemoryRoom(time.monotonic, GONE_S), "alone")
        return CounterParts(own, (), _nothing, None, own, _always, lambda: True, alone)
    scripts = ValkeyScripts(_at_socket(url, run_dir))
    await scripts.start(START_S)
    seen: list[StoreWatch] = []
    member = secrets.token_hex(8)
    guarded = GuardedCounters(
        ValkeyCounters(scripts, most), lambda: MemoryCounters(_steady_wall(), most), lambda: seen[0].replicas, time.monotonic
    )
    watch = StoreWatch(
        scripts, member, time.monotonic, rebuild=rebuild, deliver=guarded.deliver, heard=guarded.heard, failed=guarded.failed
    )
    seen.append(watch)
    await watch.look()

    async def turn(late: bool) -> tuple[bool, bool]:
        ours, anywhere = await scripts.run("turn", _TURN, (member.encode(), int(TURN_S * 1e3), int(LATE_S * 1e3) if late else 0))
        return bool(ours), bool(anywhere)

    # of its own for what is not decided on: those that decide keep what they have packed
    presence = ValkeyPresence(scripts, member, GONE_S)
    return CounterParts(guarded, (watch.run,), scripts.close, guarded, ValkeyCounters(scripts), turn, lambda: watch.begun, presence)


class CounterView:
    """Looks at the counters from a process that decides nothing: the admin process."""

    def __init__(self, settings: Settings, run_dir: Path) -> None:
        url = settings.counter_url
        self._run_dir = run_dir
        self._most = settings.stores.end_users_per_tenant
        self._scripts = None if url.kind is Kind.MEMORY else ValkeyScripts(_at_socket(url, run_dir))

    async def start(self) -> None:
        """Connect, and go on trying."""
        if self._scripts is not None:
            await self._scripts.start(0.0)

    async def look(self, group: Group) -> list[LineState]:
        """How the limits of a group stand. Raises CountersAway."""
        if self._scripts is None:
            return await look(self._run_dir, group)
        # of its own for each look: those that decide keep what they have packed of the groups of the directory
        return await ValkeyCounters(self._scripts, self._most).look(group)

    async def close(self) -> None:
        """End every connection."""
        if self._scripts is not None:
            await self._scripts.close()


async def counters_answer(settings: Settings) -> str | None:
    """None when the counter store of these settings can be used from here, else why not. An embedded one is started with the
    gateway, so only its program is looked for."""
    url = settings.counter_url
    if url.kind is Kind.EMBEDDED:
        try:
            await asyncio.to_thread(server_binary)
        except CannotStartStore as error:
            return str(error)
    elif url.kind is not Kind.MEMORY:
        scripts = ValkeyScripts(url)
        try:
            if not await scripts.start():
                return scripts.why
        finally:
            await scripts.close()
    return None


def _at_socket(url: CounterUrl, run_dir: Path) -> CounterUrl:
    if url.kind is not Kind.EMBEDDED:
        return url
    return msgspec.structs.replace(url, kind=Kind.SINGLE, addresses=(Address(str(run_dir / SOCKET_NAME), 0),))


def _steady_wall() -> SteadyWall:
    return SteadyWall(time.time, time.monotonic)


async def _nothing() -> None:
    return


async def _always(late: bool) -> tuple[bool, bool]:
    return True, late
