"""The concurrency limit of each backend in one worker: feeds `backends.concurrency_limit` with observations, and writes the limits
that it finds to the load table.

`ConcurrencyLimits` does so. All processes that send to an engine share its limit. Each of several processes takes its share by their number
(`tenancy.ports.Presence`), which `ReplicaWatch` follows; while the number is unknown, each may add as much as the engine reports to have
left.

While the counter store is away the last count holds for `GONE_S`, as long as a silent process is counted. After that the number is
unknown, and each process goes by the load that engines themselves report (`backends.concurrency_limit.Limiter.room`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import msgspec
import structlog

from backends.concurrency_limit import Heard, LimitBounds, Limiter
from backends.signals import Signals
from domain.clock import Clock
from gateway.placement.backend_state import LimitView
from gateway.ticks import next_tick
from routing.load import Charge, LoadTable
from tenancy.ports import CountersAway, Presence

SILENT_S: Final = 3.0
"""Seconds after which an engine's report of its load is no evidence any more; equal to `gateway.placement.pool_state.STALE_S`."""
NEAR: Final = 0.05
"""Token limits that differ by less than this share count as equal: each change wakes waiting requests."""


class ReplicaShare(msgspec.Struct, frozen=True):
    """The share of a pool's engines that belongs to this process."""

    processes: int = 1
    """Processes that send to the pool, this one included; 0: unknown."""
    rank: int = 0
    """The place of this process among them, from 0; it decides which processes get the remainder of a division."""


ALONE: Final = ReplicaShare()
UNKNOWN: Final = ReplicaShare(0)


class _LimitedBackend:
    """One backend with its limiter."""

    __slots__ = ("heard_at", "limiter", "load_table", "pool", "supposed")

    def __init__(self, pool: str, load_table: LoadTable, bounds: LimitBounds) -> None:
        self.pool = pool
        self.load_table = load_table
        self.limiter = Limiter(bounds)
        self.heard_at: float | None = None
        self.supposed: deque[tuple[float, Charge]] = deque()
        """Requests whose first token cannot be seen, each with the assumed time of that token. Bounded by the requests sent until then."""


class ConcurrencyLimits:
    """The limits of every backend that has one; pools whose limits are off have no entries."""

    def __init__(self) -> None:
        self.limiters: dict[str, Limiter] = {}
        """The limiter of each backend that has one, by backend id; attempts report first tokens and ends of answers to it."""
        self._backends: dict[str, _LimitedBackend] = {}
        self._shares: dict[str, ReplicaShare] = {}
        self._counted_shares: dict[str, ReplicaShare] = {}
        """The last share with a known number of processes, by pool: engines that report no load are shared by it."""

    def add(self, pool: str, backend_id: str, load_table: LoadTable, bounds: LimitBounds | None) -> None:
        """Add a backend that joins; `bounds` None for a backend without a limit."""
        if bounds is not None:
            self._backends[backend_id] = backend = _LimitedBackend(pool, load_table, bounds)
            self.limiters[backend_id] = backend.limiter
            self._write(backend_id, backend)

    def drop(self, backend_id: str) -> None:
        """Remove a backend that has left."""
        self._backends.pop(backend_id, None)
        self.limiters.pop(backend_id, None)

    def restarted(self, backend_id: str) -> None:
        """Restart the search for the limit of a backend whose process is a new one."""
        if (backend := self._backends.get(backend_id)) is not None:
            backend.limiter.restarted()
            self._write(backend_id, backend)

    def set_share(self, pool: str, share: ReplicaShare) -> None:
        """Set this process's share of a pool's engines."""
        if self._shares.get(pool) != share:
            self._shares[pool] = share
            if share.processes:
                self._counted_shares[pool] = share
            for backend_id, backend in self._backends.items():
                if backend.pool == pool:
                    self._write(backend_id, backend)

    def share_of(self, pool: str) -> ReplicaShare:
        """This process's share of a pool, as it was set last."""
        return self._shares.get(pool, ALONE)

    def suppose(self, backend_id: str, due: float, charge: Charge) -> None:
        """Note a request whose first token cannot be seen; at `due` the token is assumed to have come."""
        if (backend := self._backends.get(backend_id)) is not None:
            backend.supposed.append((due, charge))

    def reported(self, backend_id: str, signals: Signals, now: float) -> None:
        """Take an engine's report of its load."""
        backend = self._backends.get(backend_id)
        if backend is not None:
            backend.heard_at = now if signals.running is not None and signals.waiting is not None else None
            self._look(backend_id, backend, signals, now)

    def tick(self, now: float) -> None:
        """Update the limits of backends that have not reported for `SILENT_S`; called twice a second."""
        for backend_id, backend in self._backends.items():
            if backend.heard_at is None or now - backend.heard_at > SILENT_S:
                self._look(backend_id, backend, None, now)

    def _look(self, backend_id: str, backend: _LimitedBackend, signals: Signals | None, now: float) -> None:
        supposed = backend.supposed
        load_table = backend.load_table
        while supposed and supposed[0][0] <= now:
            load_table.begun(supposed.popleft()[1])
        own = load_table.in_flight(backend_id)
        begun = load_table.begun_on(backend_id)
        if signals is None:
            heard = Heard(own, begun)
        else:
            heard = Heard(own, begun, signals.running, signals.waiting, signals.preemptions, signals.generated_tokens)
        backend.limiter.update(heard, self._counted_shares.get(backend.pool, ALONE).processes, now)
        self._write(backend_id, backend)

    def _write(self, backend_id: str, backend: _LimitedBackend) -> None:
        limiter = backend.limiter
        load_table = backend.load_table
        if limiter.has_report and not self.share_of(backend.pool).processes:
            requests, tokens = limiter.room()
        else:
            share = self._counted_shares.get(backend.pool, ALONE)
            requests, tokens = limiter.share(share.processes, share.rank)
        row = load_table.row_of[backend_id]
        limit_tokens = load_table.limit_tokens[row]
        slots = requests * limiter.slots / limiter.requests
        changed = requests != load_table.limit[row] or slots != load_table.slots[row]
        if changed or not (limit_tokens == tokens or abs(tokens - limit_tokens) < NEAR * limit_tokens):
            load_table.set_limit(backend_id, requests, tokens, slots)

    def shown(self, backend_id: str) -> LimitView | None:
        """The limit of a backend, for display; None where there is no limit."""
        backend = self._backends.get(backend_id)
        if backend is None:
            return None
        limiter = backend.limiter
        load_table = backend.load_table
        tokens = None if limiter.tokens == inf else float(round(limiter.tokens))
        return LimitView(float(round(limiter.requests)), tokens, load_table.limit[load_table.row_of[backend_id]])


log = structlog.get_logger("tidegate.limits")

BEAT_S: Final = 2.0
"""Time between two heartbeats; five may be lost."""
GONE_S: Final = 10.0
"""Time without a heartbeat after which a process is gone, and age at which the store's last answer is too old."""


class ReplicaWatch:
    """Sends one worker's heartbeats to the presence store, and passes on its share of each pool.

    Args:
        share: called with each pool's share whenever the number of processes is known anew.
        draining: whether this process drains, so that the others may use its share.
    """

    def __init__(
        self,
        presence: Presence,
        pools: Sequence[str],
        share: Callable[[str, ReplicaShare], None],
        draining: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._presence = presence
        self._pools = tuple(pools)
        self._share = share
        self._draining = draining
        self._clock = clock
        self._heard_at: float | None = None
        self._lost = False
        for pool in self._pools:
            share(pool, UNKNOWN)

    async def run(self) -> None:
        """Send heartbeats until the worker drains, then leave every pool; runs until cancelled."""
        while not self._draining():
            await self.beat()
            await next_tick(BEAT_S)
        with contextlib.suppress(CountersAway):
            await asyncio.gather(*map(self._presence.leave, self._pools))
        await asyncio.Event().wait()  # a loop that returns takes its worker with it

    async def beat(self) -> None:
        """Send one heartbeat for each pool, and pass on the shares."""
        try:
            slots = await asyncio.gather(*map(self._presence.beat, self._pools))
        except CountersAway as away:
            self._away(str(away))
            return
        self._heard_at = self._clock()
        if self._lost:
            self._lost = False
            log.info("gateways know of each other again", processes=max(slot.count for slot in slots))
        for pool, slot in zip(self._pools, slots, strict=True):
            self._share(pool, ReplicaShare(max(1, slot.count), slot.rank))

    def _away(self, reason: str) -> None:
        if self._lost or (self._heard_at is not None and self._clock() - self._heard_at <= GONE_S):
            return
        self._lost = True
        log.warning("not known how many gateways there are; what each sends goes by what engines report alone", reason=reason)
        for pool in self._pools:
            self._share(pool, UNKNOWN)
