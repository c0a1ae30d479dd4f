"""Builds the subscription to each backend that publishes KV events when the backend joins, and ends it when the backend leaves.

The endpoints of a registered backend are checked as its URL is. ZeroMQ resolves names by itself, so such endpoints have to be IP
addresses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

import structlog

from backends.reach import Reach
from domain.membership import KvEvents, Member
from gateway.deps import Deps
from gateway.fleet.kv_watch import KvWatch
from gateway.fleet.zeromq import ZeroMq
from routing.prefix.engine_blocks import RootOf

log = structlog.get_logger("tidegate.kv")

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
        self.watch = KvWatch(deps.live, {}, self._counted, deps.grounds, deps.clock)

    def attach(self, member: Member) -> Callable[[], Awaitable[None]]:
        """Subscribe to a backend, if it publishes events and its endpoints are allowed. Returns how to end the subscription."""
        events = member.kv_events
        if events is None:
            return _nothing
        refusal = events_refusal(events, self._reach) if member.owner == "registered" else ""
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
        blocks: KvConsumer = HeldBlocks() if root_of is None else EngineBlocks(deps.grounds.index, backend, root_of)
        if root_of is not None:
            deps.grounds.use_events(backend)
        stream = KvStream(blocks, can_replay=events.replay is not None)
        self.watch.add(
            backend,
            KvSubscriber(
                self._zeromq.context(), stream, events.endpoint, events.replay, bind=events.bind, clock=deps.clock, loop=deps.loop
            ),
        )

    def _end(self, backend: str) -> Awaitable[None]:
        self.watch.remove(backend)
        self._deps.grounds.use_predictions(backend)
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
