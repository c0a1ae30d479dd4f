"""The gateways of a world: the worker of `gateway.process.worker`, whole, on virtual time.

This is the one place that knows how it is built: what it takes from outside (time, chance, SQL, the disk, signals) is put in its
modules' place while a world runs, and nothing else is.
"""

import asyncio
import contextlib
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import backends.simengine.instant
import backends.simengine.server
import gateway.fleet.health
import gateway.fleet.kv_events
import gateway.fleet.load_push
import gateway.fleet.membership
import gateway.fleet.sources
import gateway.ledger.reconcile
import gateway.process.worker
import gateway.request.holds
import gateway.rollouts.watch
import gateway.sync.policies
import gateway.ticks
import gateway.wiring.auth
import gateway.wiring.fleet
import gateway.wiring.limits
import gateway.wiring.requests
import tenancy.stores.valkey.node
import tenancy.stores.valkey.watch
from domain.identity import KeyId
from gateway.config.load import Settings
from gateway.deps import Deps
from gateway.process.supervisor import WorkerSlot
from gateway.record import Record
from gateway.sync.directory import DirectoryWatch
from gateway.wiring.stores import Stores
from policies.compile import PolicySet
from policies.load import Mark
from tenancy.accounts import Contents
from tenancy.directory_ports import DirectorySource
from tenancy.keys import Pepper
from tenancy.stores.memory import MemoryAdapterStore, MemoryCachePurges, MemoryMemberStore, MemoryModelRevisions, MemoryRolloutStore
from tests.world.hosts import HERE, Host, here
from tests.world.ledger import Ledger, Log, NothingWaits
from tests.world.loop import VirtualLoop

PEPPER = Pepper("world", b"w" * 32)
TIMED = (
    backends.simengine.server,
    backends.simengine.instant,
    gateway.wiring.limits,
    gateway.wiring.fleet,
    gateway.wiring.auth,
    gateway.wiring.requests,
    gateway.process.worker,
)
"""Modules through which time enters."""
SLOWED: tuple[tuple[object, str, float], ...] = (
    (gateway.fleet.health, "EVALUATE_EVERY_S", 3.0),
    (gateway.fleet.membership, "ORDERS_EVERY_S", 3600.0),
    (gateway.fleet.sources.RegisteredSource, "every_s", 60.0),
    (gateway.request.holds, "LOOK_S", 2.0),
    (gateway.sync.policies, "POLL_S", 60.0),
    (gateway.rollouts.watch, "STORE_POLL_S", 5.0),
    (gateway.ledger.reconcile, "STEP_S", 3.0),
    (gateway.process.worker, "SWEEP_S", 1.5),
    (gateway.fleet.kv_events, "TICK_S", 60.0),
    (gateway.fleet.load_push, "TICK_S", 60.0),
    (gateway.ticks, "PHASES_S", 0.0),
    (tenancy.stores.valkey.node, "SUSPECT_S", 1.0),
    (tenancy.stores.valkey.watch, "LOOK_S", 4.0),
    (tenancy.stores.valkey.watch, "DELIVER_S", 2.0),
)
"""What gateways do by themselves they do less often here: it is most of the work in ten minutes, and little of what can go wrong. Their
ticks have no phase, which is drawn anew in each process."""
DRAWING = (gateway.wiring.limits, gateway.wiring.auth, gateway.wiring.requests)
"""Modules through which chance enters."""


class Directory(DirectorySource):
    """The database's accounts; what is changed is seen with the next poll."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents

    async def version(self) -> int:
        return self.contents.version

    async def revocations(self) -> dict[KeyId, float]:
        return {key.id: key.revoked_unix for key in self.contents.keys if key.revoked_unix is not None}

    async def load(self) -> Contents:
        return self.contents


class _NoFile:
    """No directory is kept for a start without the database."""

    def save(self, contents: Contents, at_unix: float) -> None:
        pass

    def load(self) -> None:
        return None


class _Folder:
    """A policy folder that nobody changes while a gateway runs."""

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies

    def marks(self) -> dict[str, Mark]:
        return {}

    def read(self) -> PolicySet:
        return self._policies


class Parts:
    """What all gateways of a world share, and what they tell."""

    def __init__(self, settings: Settings, policies: PolicySet, directory: Directory, ledger: Ledger, run_dir: Path) -> None:
        self.settings, self.policies, self.directory, self.ledger, self.run_dir = settings, policies, directory, ledger, run_dir
        self.rollouts = MemoryRolloutStore()
        self.defects: list[str] = []
        self.records: list[tuple[Gateway, Record]] = []
        self.on_record: Callable[[Gateway, Record], None] = lambda gateway, record: None


class Gateway:
    """One gateway process at an address that outlives it."""

    _seats = itertools.count()

    def __init__(self, loop: VirtualLoop, parts: Parts, name: str, index: int, skew_s: float) -> None:
        self.parts, self.name, self.loop = parts, name, loop
        self.host = Host(name, skew_s)
        self.log = Log(parts.ledger)
        self.ready = False
        self.killed_with: list[str] | None = None
        """Ids of the requests that were under way when it was killed."""
        self.draining = False
        sock: Any = SimpleNamespace(getsockname=lambda: (name, 8080))
        self.worker: Any = None
        self._slot = WorkerSlot(index, sock, parts.run_dir, -1, self._is_ready)
        self.task = loop.begin(self.host, self._run())

    @property
    def deps(self) -> Deps | None:
        """What its requests work with, once it is that far."""
        deps: Deps | None = self.worker._deps if self.worker is not None else None
        return deps

    def _is_ready(self) -> None:
        self.ready = True

    async def _run(self) -> None:
        HERE.get().gateway = self  # type: ignore[attr-defined]
        self.worker = gateway.process.worker._Worker(self._slot, self.parts.settings)
        observe = self.worker._observe

        def seen(record: Record) -> None:
            if self.host.alive:
                observe(record)
                self.parts.records.append((self, record))
                self.parts.on_record(self, record)

        self.worker._observe = seen
        await self.worker.run()

    def kill(self) -> None:
        """As `kill -9`."""
        if self.host.alive:
            self.loop.end_power(self.host)
            self.killed_with = self.log.killed()

    def terminate(self) -> None:
        """SIGTERM."""
        handler = self.host.signals.get(signal.SIGTERM)
        if handler is not None:
            self.draining = True
            handler()


def _of_here(attribute: str) -> Any:
    return getattr(here().gateway, attribute)  # type: ignore[attr-defined]


async def _nobody(*_: object) -> bytes:
    """No other worker of a host: each has one."""
    return b""


@contextlib.contextmanager
def simulated(loop: VirtualLoop, parts: Parts, rng: random.Random, epoch_unix: float) -> Iterator[None]:
    """Everything that gateways and engines take from outside comes from the world."""

    def wall() -> float:
        return epoch_unix + loop.now + here().skew_s

    time = SimpleNamespace(monotonic=loop.time, time=wall, perf_counter=loop.time, strftime=lambda *_: "2026-01-01")
    chance = SimpleNamespace(token_hex=lambda n: rng.randbytes(n).hex(), randbits=rng.getrandbits)

    def watch(settings: Settings, stores: Stores, pepper: Pepper) -> DirectoryWatch:
        return DirectoryWatch(stores.directory, pepper, _NoFile(), wall, stores.close)  # type: ignore[arg-type]

    registered = (MemoryMemberStore(), MemoryAdapterStore(), MemoryModelRevisions(), MemoryCachePurges())
    stores = Stores(parts.directory, *registered, parts.ledger, parts.rollouts, None, None, None, None, lambda: asyncio.sleep(0))
    with contextlib.ExitStack() as stack:
        for module in TIMED:
            stack.enter_context(patch.object(module, "time", time))
        for module in DRAWING:
            stack.enter_context(patch.object(module, "secrets", chance))
        for name, value in {
            "open_stores": lambda settings, pepper: stores,
            "directory_watch_for": watch,
            "usage_writer_for": lambda settings: _of_here("log").writer(),
            "PolicyFolder": lambda *_: _Folder(parts.policies),
            "read_pepper": lambda settings: PEPPER,
            "settle_memory": lambda: None,
            "ask_oldest": _nobody,
            "_log_defect": lambda error, request_id: parts.defects.append(f"{here()} {request_id}: {error!r}"),
        }.items():
            stack.enter_context(patch.object(gateway.process.worker, name, value))
        for place, name, value in SLOWED:
            stack.enter_context(patch.object(place, name, value))
        stack.enter_context(patch.object(gateway.wiring.fleet, "LastGood", lambda *_: None))
        stack.enter_context(patch.object(gateway.wiring.limits, "UnbookedUsage", NothingWaits))
        yield
