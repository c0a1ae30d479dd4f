"""Builds the counters of one worker and their reconciliation with the ledger, and reports their state."""

import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.counter_wiring import CounterParts, Epoch, counters_for
from gateway.limits_state import LimitsState
from gateway.part_watch import PartWatch
from gateway.placing.limits import Part
from gateway.reconcile import Reconciler
from gateway.settings import Settings
from gateway.usage_log import UsageWriter
from tenancy.directory import Directory
from tenancy.hold import LimitUsage
from tenancy.limits import Group
from tenancy.ports import Counters, CountersAway
from tenancy.stores.under_way import UnbookedUsage
from tenancy.usage import SpendReader

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
            log.warning("limits per day, month and for ever count from now on: there is no ledger (ledger.enabled)")

    def loops(self, share: Callable[[str, Part], None], going: Callable[[], bool]) -> list[Coroutine[Any, Any, None]]:
        """The background loops to run for as long as the counters are used. `share` and `going` are those of `PartWatch`."""
        assert self._parts is not None
        pools = [pool.name for pool in self._settings.pools]
        part = PartWatch(self._parts.presence, pools, share, going, time.monotonic)
        own_loops = [part.run(), *([self._reconciler.run()] if self._reconciler is not None else [])]
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
