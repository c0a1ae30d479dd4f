"""Builds the subscription to each backend that publishes KV events, when it joins, and ends it when it leaves.

Where a backend was registered by somebody else, its endpoints are judged as its URL is; ZeroMQ resolves names by itself, so
they have to be IP addresses there.
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
from routing.engine_blocks import RootOf

log = structlog.get_logger("tidegate.kv")

CountKv = Callable[[str, str, int, int], None]
"""Told of (pool, backend, batches, gaps)."""


class KvListener:
    """One per worker; `attach` is a `gateway.fleet.roster.Attach`.

    Args:
        rooted: by pool, for those whose prompts we have the tokens of, what our chains of prompts begin with; events of other pools are
            followed and shown, and nobody is placed by them.
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
        """Listen to a backend, if it publishes and may be listened to."""
        told = member.kv_events
        if told is None:
            return _nothing
        refusal = events_refusal(told, self._reach) if member.owner == "registered" else ""
        if refusal:
            log.warning("kv events not listened to", pool=member.pool, backend=member.id, reason=refusal)
            return _nothing
        self._listen(member, told)
        self._pools[member.id] = member.pool
        return partial(self._end, member.id)

    def _listen(self, member: Member, told: KvEvents) -> None:
        # imported only when there is something to hear; see `ZeroMq`
        from backends.clients.kv_subscriber import KvSubscriber
        from backends.kv_blocks import HeldBlocks, KvConsumer
        from backends.kv_stream import KvStream
        from routing.engine_blocks import EngineBlocks

        deps, backend = self._deps, member.id
        root_of = self._rooted.get(member.pool)
        blocks: KvConsumer = HeldBlocks() if root_of is None else EngineBlocks(deps.grounds.index, backend, root_of)
        if root_of is not None:
            deps.grounds.exact(backend)
        stream = KvStream(blocks, can_replay=told.replay is not None)
        self.watch.add(
            backend,
            KvSubscriber(self._zeromq.context(), stream, told.endpoint, told.replay, bind=told.bind, clock=deps.clock, loop=deps.loop),
        )

    def _end(self, backend: str) -> Awaitable[None]:
        self.watch.remove(backend)
        self._deps.grounds.guessed(backend)
        self._pools.pop(backend, None)
        return _nothing()

    def _counted(self, backend: str, batches: int, gaps: int) -> None:
        self._count(self._pools[backend], backend, batches, gaps)


def events_refusal(told: KvEvents, reach: Reach) -> str:
    """Why these endpoints must not be listened to on somebody else's word; empty when they may."""
    if told.bind:
        return "bind opens a port of this gateway; only tidegate.yaml may do that"
    for endpoint in filter(None, (told.endpoint, told.replay)):
        parts = urlsplit(endpoint)
        if parts.scheme != "tcp":
            return f"{endpoint} is not on the network; write tcp://address:port"
        if refusal := reach.refusal(parts.hostname or "", parts.port or 0):
            return f"{endpoint} {refusal}"
    return ""


def _nothing() -> Awaitable[None]:
    return asyncio.sleep(0)
