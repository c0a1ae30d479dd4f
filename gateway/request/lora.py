"""Requests that use a LoRA adapter: loads the adapter on the chosen backend before the call, through `backends.lora.loader`.

A request gets an adapter only by a rule of its policy: adapter fields of callers are refused, and the name that an engine is asked for is
always the gateway's.
"""

import asyncio
from typing import Final

from backends.lora.residency import NONE, Adapter, AdaptersInUse, LoraUnavailable
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.deps import Live
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import Listener
from gateway.placement.place import lora_unavailable
from gateway.request.attempt import Attempt

FRESH_S: Final = 2.0
"""Seconds for which an engine's report of its adapters in use is valid; it is read ten times a second."""


def adapters_in_use(live: Live, clock: Clock, backend: str) -> AdaptersInUse:
    """The adapters that a backend itself reports as in use, by any gateway; none when it has not reported lately."""
    signals = live.signals.get(backend)
    if signals is None or signals.loras is None or clock() - signals.read_at > FRESH_S:
        return NONE
    return AdaptersInUse(signals.loras, signals.read_at)


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
            adapters = await deps.loras.hold(backend.pool, backend.id, adapter, deps.loras.load_s - story.lora_wait_s, caller_left.seen)
        except LoraUnavailable as error:
            if exchange.gone:
                return caller_gone()
            return lora_unavailable(f"{backend.id}: {error}", deps.rng)
        finally:
            story.lora_wait_s += deps.clock() - begun
        try:
            fault = await attempt.dispatch()
        finally:
            adapters.release(adapter.served, deps.clock())
        if fault is not None and fault.kind is Kind.WRONG_MODEL:
            deps.loras.bar(adapters, adapter, f"{adapter.served}: {fault.detail}")
        if fault is None or fault.kind is not Kind.MODEL_NOT_SERVED:
            return fault
        adapters.lost(adapter.served)
    return fault
