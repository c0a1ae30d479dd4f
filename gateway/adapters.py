"""Requests that are answered with an adapter: where routing and `backends.lora_loader` meet.

An adapter is reached through a policy's rule and in no other way: callers' own adapter fields are stripped, and the name an
engine is asked for is always ours.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from backends.loras import NONE, Adapter, InUse, LoraUnavailable
from domain.clock import Clock, Rng
from domain.faults import Fault, Kind, Retry
from gateway.deps import Deps, Live
from gateway.http.edge.exchange import Exchange, Listener
from gateway.placing.ground import Ground
from gateway.story import Story
from routing.choosing import Choosing
from routing.demand import Demand
from routing.fleet import Backend, Pool
from routing.ports import Adapters, Match
from routing.residency import with_adapter
from routing.room import FULL
from routing.schedule import Route, place

ABOUT_ADAPTERS: Final = frozenset({Kind.WRONG_MODEL, Kind.MODEL_NOT_SERVED})
"""Faults that, where an adapter was asked for, say nothing against the backend: the model itself may be served well."""

COMING_BACK: Final = f"{FULL}the pool was out of service and takes up its work step by step"

FRESH_S: Final = 2.0
"""An engine's word on which adapters are in use counts for this long; it is read ten times a second."""


def adapters_in_use(live: Live, clock: Clock, backend: str) -> InUse:
    """The adapters that a backend itself reports as in use, by any gateway; none when it has not reported lately."""
    signals = live.signals.get(backend)
    if signals is None or signals.loras is None or clock() - signals.read_at > FRESH_S:
        return NONE
    return InUse(signals.loras, signals.read_at)


def placed(
    demand: Demand,
    pool: Pool,
    ground: Ground,
    match: Match,
    choosing: Choosing,
    adapter: Adapter | None,
    deps: Deps,
    now: float,
    rng: Rng,
) -> Route:
    """The decision, with what is known of where the adapter is."""
    holder = ground.sessions.holder(demand.session)
    if ground.recovery.held(now):
        held = tuple([msgspec.structs.replace(one, reason=COMING_BACK) for one in pool.up])
        return Route(choosing.name, (), pool.not_up + held, full=bool(held))
    part = ground.holders.part(demand.tenant, now)
    shut = deps.live.breakers.shut("" if adapter is None else adapter.served, now)
    if adapter is None:
        return place(demand, pool, ground.board, match, choosing, now, rng, holder=holder, shut=shut, part=part)
    there, unable = deps.loras.where(pool.name, [backend.id for backend in pool.up], adapter)
    where = Adapters(there, unable)
    route = place(demand, pool, ground.board, match, choosing, now, rng, holder=holder, adapters=where, shut=shut, part=part)
    return route if choosing.policy.in_seconds else with_adapter(route, there, ground.board)


class _Left(Listener):
    """Tells whoever waits for an adapter that the caller has left."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seen: Final[asyncio.Future[None]] = loop.create_future()

    def gone(self) -> None:
        """See `Listener`."""
        if not self.seen.done():
            self.seen.set_result(None)


async def with_held(
    adapter: Adapter, backend: Backend, exchange: Exchange, story: Story, deps: Deps, attempt: Callable[[], Awaitable[Fault | None]]
) -> Fault | None:
    """An attempt with the adapter loaded and kept meanwhile.

    Where the engine turns out not to know the adapter (it was restarted, or somebody unloaded it), it is loaded and asked once
    more: its 404 cost nothing, so this is no retry that a budget should bound.
    """
    fault: Fault | None = None
    for _ in range(2):
        if exchange.gone:
            return caller_gone()
        begun = deps.clock()
        left = exchange.listener = _Left(deps.loop)
        try:
            shelf = await deps.loras.hold(backend.pool, backend.id, adapter, deps.loras.load_s - story.lora_wait_s, left.seen)
        except LoraUnavailable as error:
            if exchange.gone:
                return caller_gone()
            return _unavailable(f"{backend.id}: {error}", deps)
        finally:
            story.lora_wait_s += deps.clock() - begun
        try:
            fault = await attempt()
        finally:
            shelf.release(adapter.served, deps.clock())
        if fault is not None and fault.kind is Kind.WRONG_MODEL:
            deps.loras.bar(shelf, adapter, f"{adapter.served}: {fault.detail}")
        if fault is None or fault.kind is not Kind.MODEL_NOT_SERVED:
            return fault
        shelf.lost(adapter.served)
    return fault


def caller_gone() -> Fault:
    """What ends a request whose caller has left."""
    return Fault(Kind.CLIENT_GONE, "The caller closed the connection before the answer was complete.")


def _unavailable(detail: str, deps: Deps) -> Fault:
    return Fault(
        Kind.LORA_UNAVAILABLE,
        "No engine can serve this model right now. Try again shortly.",
        retry=Retry(should=True, after_s=1.0 + 4.0 * deps.rng.random()),
        detail=detail,
    )
