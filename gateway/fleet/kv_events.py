"""Keeps the picture of engines' KV caches current from the events that they publish: one subscription per backend that publishes.

`KvListener` builds the subscription when a backend joins, and ends it when the backend leaves; `KvWatch` puts the state of every
subscription into `live.kv`. Every worker subscribes for itself: an index that decides in microseconds has to lie in the process that
decides.

The endpoints of a registered backend are checked as its URL is (`events_refusal`). ZeroMQ resolves names by itself, so such endpoints have
to be IP addresses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog

from backends.kv.blocks import KvState
from backends.reach import Reach
from backends.signals import START_JITTER_S
from domain.clock import Clock
from domain.membership import FOUND, KvEvents, Member
from gateway.deps import Deps, Live
from gateway.fleet.loops import ZeroMq
from gateway.placement.pool_state import PoolStates
from gateway.ticks import next_tick
from routing.prefix.engine_blocks import RootOf

if TYPE_CHECKING:
    from backends.kv.stream import KvStream

log = structlog.get_logger("tidegate.kv")

TICK_S: Final = 0.5
"""How often the state of subscriptions is evaluated; event batches themselves are applied as they arrive."""


class KvSubscription(Protocol):
    """The subscription to one backend's events."""

    stream: "KvStream"
    trouble: str
    """Why nothing is received; empty while the subscription works."""

    def tick(self) -> None:
        """Keep the subscription going; called about once a second, the first call starts it."""
        ...

    def close(self) -> None:
        """Close its sockets."""
        ...


class KvWatch:
    """Puts the state of every subscription into `live.kv`.

    Args:
        subscriptions: by backend id; may be empty.
        count: called with a backend and its new batches and gaps.
    """

    def __init__(
        self,
        live: Live,
        subscriptions: Mapping[str, KvSubscription],
        count: Callable[[str, int, int], None],
        pool_states: PoolStates,
        clock: Clock,
    ) -> None:
        self._live = live
        self._pool_states = pool_states
        self._clock = clock
        self._subscriptions = dict(subscriptions)
        self._count = count
        self._started: dict[str, float] = {}
        self._logged: dict[str, str] = {}
        """The reason that was logged last, by backend."""

    def add(self, backend: str, subscription: KvSubscription) -> None:
        """Follow the events of one more backend."""
        self._subscriptions[backend] = subscription

    def remove(self, backend: str) -> None:
        """Close the subscription of a backend and forget its state."""
        subscription = self._subscriptions.pop(backend, None)
        if subscription is not None:
            subscription.close()
        for by_backend in (self._live.kv, self._started, self._logged):
            by_backend.pop(backend, None)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await next_tick(TICK_S)

    def look(self) -> None:
        """Evaluate every subscription once."""
        for backend, subscription in self._subscriptions.items():
            subscription.tick()
            self._note_restart(backend, subscription)
            state = subscription.stream.state()
            if subscription.trouble:
                state = msgspec.structs.replace(state, reason=subscription.trouble)
            before = self._live.kv.get(backend)
            self._live.kv[backend] = state
            batches, gaps = (before.counts.batches, before.counts.gaps) if before else (0, 0)
            self._count(backend, state.counts.batches - batches, state.counts.gaps - gaps)
            self._pool_states.events(backend, connected=subscription.stream.up, stored=state.counts.stored, now=self._clock())
            self._log_change(backend, state)

    def _note_restart(self, backend: str, subscription: KvSubscription) -> None:
        """Empty the picture when the engine's process is a new one: its metrics say when the process began."""
        signals = self._live.signals.get(backend)
        began = signals.started_unix if signals is not None else None
        if began is not None and abs(began - self._started.setdefault(backend, began)) > START_JITTER_S:
            self._started[backend] = began
            subscription.stream.restarted(began)

    def _log_change(self, backend: str, state: KvState) -> None:
        if state.reason != self._logged.get(backend, "-"):
            self._logged[backend] = state.reason
            if state.trusted:
                log.info("kv events exact", backend=backend, blocks=state.blocks)
            else:
                log.warning("kv events not trusted", backend=backend, reason=state.reason)

    async def close(self) -> None:
        """Close every subscription."""
        for subscription in self._subscriptions.values():
            subscription.close()


CountKv = Callable[[str, str, int, int], None]
"""Called with (pool, backend, new batches, new gaps)."""


class KvListener:
    """Subscribes to the KV events of every backend that publishes them; one per worker. `attach` is a `gateway.fleet.roster.Attach`.

    Args:
        rooted: how our chains of prompts begin, by pool; only pools whose prompts the gateway can tokenize. Events of other pools
            are followed and shown, but not used for routing.
    """

    def __init__(self, deps: Deps, reach: Reach, count: CountKv, zeromq: ZeroMq, rooted: Mapping[str, RootOf]) -> None:
        self._deps = deps
        self._rooted = rooted
        self._reach = reach
        self._count = count
        self._pools: dict[str, str] = {}
        self._zeromq = zeromq
        self.watch = KvWatch(deps.live, {}, self._counted, deps.pool_states, deps.clock)

    def attach(self, member: Member) -> Callable[[], Awaitable[None]]:
        """Subscribe to a backend, if it publishes events and its endpoints are allowed. Returns how to end the subscription."""
        events = member.kv_events
        if events is None:
            return _nothing
        refusal = events_refusal(events, self._reach) if member.owner in FOUND else ""
        if refusal:
            log.warning("kv events not listened to", pool=member.pool, backend=member.id, reason=refusal)
            return _nothing
        self._listen(member, events)
        self._pools[member.id] = member.pool
        return partial(self._end, member.id)

    def _listen(self, member: Member, events: KvEvents) -> None:
        # imported only when a backend publishes events; `ZeroMq` gives the reason
        from backends.clients.kv_subscriber import KvSubscriber
        from backends.kv.blocks import HeldBlocks, KvConsumer
        from backends.kv.stream import KvStream
        from routing.prefix.engine_blocks import EngineBlocks

        deps = self._deps
        backend = member.id
        root_of = self._rooted.get(member.pool)
        blocks: KvConsumer = HeldBlocks() if root_of is None else EngineBlocks(deps.pool_states.index, backend, root_of)
        if root_of is not None:
            deps.pool_states.use_events(backend)
        stream = KvStream(blocks, can_replay=events.replay is not None)
        self.watch.add(
            backend,
            KvSubscriber(
                self._zeromq.context(), stream, events.endpoint, events.replay, bind=events.bind, clock=deps.clock, loop=deps.loop
            ),
        )

    def _end(self, backend: str) -> Awaitable[None]:
        self.watch.remove(backend)
        self._deps.pool_states.use_predictions(backend)
        self._pools.pop(backend, None)
        return _nothing()

    def _counted(self, backend: str, batches: int, gaps: int) -> None:
        self._count(self._pools[backend], backend, batches, gaps)


def events_refusal(events: KvEvents, reach: Reach) -> str:
    """Why the event endpoints of a registered backend are not allowed; empty when they are."""
    if events.bind:
        return "bind opens a port of this gateway; only tidegate.yaml may do that"
    for endpoint in filter(None, (events.endpoint, events.replay)):
        parts = urlsplit(endpoint)
        if parts.scheme != "tcp":
            return f"{endpoint} is not on the network; write tcp://address:port"
        if refusal := reach.refusal(parts.hostname or "", parts.port or 0):
            return f"{endpoint} {refusal}"
    return ""


def _nothing() -> Awaitable[None]:
    return asyncio.sleep(0)
