"""Requests that are answered with an adapter: where routing and `backends.lora.loader` meet.

An adapter is reached through a policy's rule and in no other way: callers' own adapter fields are stripped, and the name an
engine is asked for is always ours.
"""

import asyncio
from typing import Final

from backends.lora.residency import NONE, Adapter, AdaptersInUse, LoraUnavailable
from domain import retry_after
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.deps import Deps, Live
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import Listener
from gateway.request.attempt import Attempt

FRESH_S: Final = 2.0
"""An engine's word on which adapters are in use counts for this long; it is read ten times a second."""


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
    """The attempt, with its adapter loaded on the backend and kept there meanwhile; the load counts on the backend from the beginning."""
    adapter = attempt.placement.adapter
    assert adapter is not None
    return await attempt.counted(_loaded(attempt, adapter))


async def _loaded(attempt: Attempt, adapter: Adapter) -> Fault | None:
    """Load the adapter, and call the backend.

    Where the engine turns out not to know the adapter (it was restarted, or somebody unloaded it), it is loaded and asked once
    more: its 404 cost nothing, so this is no retry that a budget should bound.
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
            return _unavailable(f"{backend.id}: {error}", deps)
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


def _unavailable(detail: str, deps: Deps) -> Fault:
    return Fault(
        Kind.LORA_UNAVAILABLE,
        "No engine can serve this model right now. Try again shortly.",
        retry=retry_after.of_missing_engine(deps.rng.random()),
        detail=detail,
    )
