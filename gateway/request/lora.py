"""Requests that use a LoRA adapter: loads the adapter on the chosen backend before the call, through `backends.lora.loader`; `SlotWait` is
the wait for a slot in the queue.

A request gets an adapter only by a rule of its policy: adapter fields of callers are refused, and the name that an engine is asked for is
always the gateway's.
"""

import asyncio
from typing import Final

from backends.lora.residency import NONE, Adapter, AdaptersInUse, LoraUnavailable, NoSlot
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.deps import Deps, Live
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import Listener
from gateway.placement.place import Placement, lora_unavailable
from gateway.request.attempt import Attempt

FRESH_S: Final = 2.5
"""Seconds for which an engine's report of its adapters in use is valid: it is read ten times a second, and at rest after two seconds at the
latest."""


def adapters_in_use(live: Live, clock: Clock, backend: str) -> AdaptersInUse:
    """The adapters that a backend itself reports as in use, by any gateway; none when it has not reported lately."""
    signals = live.signals.get(backend)
    if signals is None or signals.loras is None or clock() - signals.read_at > FRESH_S:
        return NONE
    return AdaptersInUse(signals.loras, signals.read_at)


SLOTS_READ_S: Final = 0.1
"""Seconds after which a request that waits for a slot looks for one though no request of this process has freed any: another process or
a poll may have. Engines are read ten times a second."""


class SlotWait:
    """Whether it is worth routing a request anew that waits for an adapter slot: whatever ends or begins in the pool has the queue looked
    through, and a decision costs much more than what is asked here.

    Args:
        lacking: whether backends have capacity for the request and only lack a slot for its adapter.
    """

    __slots__ = ("_deps", "_moves", "_next_at", "_placement", "lacking")

    def __init__(self, placement: Placement, deps: Deps, *, lacking: bool) -> None:
        self._placement = placement
        self._deps = deps
        self._moves = -1
        self._next_at = 0.0
        self.lacking = lacking
        """The same, at the last look."""

    def lacks(self) -> bool:
        """`lacking`, for the queue."""
        return self.lacking

    def may_be_over(self) -> bool:
        """Whether a backend may take the request's adapter now."""
        deps, adapter, now = self._deps, self._placement.adapter, self._deps.clock()
        pool = deps.live.fleet.pools[self._placement.pool.name]
        if adapter is None:
            return True
        # who waits is a request like those that are sent: the engines' reports have to stay new
        self._placement.pool_state.rest.asked(now)
        moves = deps.loras.moves(pool.up_ids)
        if moves == self._moves and now < self._next_at:
            return False
        self._moves, self._next_at = moves, now + SLOTS_READ_S
        return len(deps.loras.where(pool.name, pool.up_ids, adapter).busy) < len(pool.up_ids)


class _CallerLeft(Listener):
    """Ends the wait for an adapter's load when the caller leaves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seen: Final[asyncio.Future[None]] = loop.create_future()

    def gone(self) -> None:
        if not self.seen.done():
            self.seen.set_result(None)


async def with_adapter(attempt: Attempt) -> Fault | None:
    """Run the attempt with its adapter loaded on the backend and kept there until the end; the request counts there from the start."""
    adapter = attempt.placement.adapter
    assert adapter is not None
    return await attempt.counted(_load_and_call(attempt, adapter))


async def _load_and_call(attempt: Attempt, adapter: Adapter) -> Fault | None:
    """Load the adapter, and call the backend.

    When the engine answers that it does not have the adapter (it was restarted, or the adapter was unloaded), the adapter is loaded again
    and the call repeated once: the 404 cost nothing, so the repetition does not count as a retry.
    """
    exchange, story, deps, backend = attempt.exchange, attempt.story, attempt.deps, attempt.backend
    fault: Fault | None = None
    for _ in range(2):
        if exchange.gone:
            return caller_gone()
        begun = deps.clock()
        caller_left = exchange.listener = _CallerLeft(deps.loop)
        try:
            await deps.loras.load(backend.pool, backend.id, adapter, deps.loras.load_s - story.tried.loading_s, caller_left.seen)
        except LoraUnavailable as error:
            if exchange.gone:
                return caller_gone()
            story.tried.lacked_slot |= isinstance(error, NoSlot)
            return lora_unavailable(f"{backend.id}: {error}", deps.rng)
        finally:
            took_s = deps.clock() - begun
            story.lora_wait_s += took_s
            story.tried.loading_s += took_s
        fault = await attempt.dispatch()
        adapters = deps.loras.adapters_on(backend.pool, backend.id)
        if fault is not None and fault.kind is Kind.WRONG_MODEL:
            deps.loras.bar(adapters, adapter, f"{adapter.served}: {fault.detail}")
        if fault is None or fault.kind is not Kind.MODEL_NOT_SERVED:
            return fault
        adapters.lost(adapter.served)
    return fault
