"""Builds the subscription to each backend that pushes its load, when it joins, and ends it when it leaves.

Where a backend was registered by somebody else, its endpoint is judged as its URL is; ZeroMQ resolves names by itself, so it
has to be an IP address there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

import structlog

from backends.load_reports import Decode, LoadReports
from backends.reach import Reach
from domain.membership import LoadPush, Member
from gateway.deps import Deps
from gateway.fleet.load_watch import LoadWatch
from gateway.fleet.signal_board import SignalBoard
from gateway.fleet.zeromq import ZeroMq

log = structlog.get_logger("tidegate.signals")

CountPush = Callable[[str, str, int, int], None]
"""Told of (pool, backend, reports, gaps)."""


class LoadListener:
    """One per worker; `attach` is a `gateway.fleet.roster.Attach`.

    Args:
        decoders: how reports are read, by pool; a pool that is not there has engines that push none.
    """

    def __init__(
        self, deps: Deps, reach: Reach, decoders: Mapping[str, Decode], board: SignalBoard, count: CountPush, zeromq: ZeroMq
    ) -> None:
        self._deps = deps
        self._reach = reach
        self._decoders = decoders
        self._count = count
        self._zeromq = zeromq
        self._pools: dict[str, str] = {}
        self.watch = LoadWatch(deps.live, board, deps.clock, self._counted)

    def attach(self, member: Member) -> Callable[[], Awaitable[None]]:
        """Listen to a backend, if it pushes and may be listened to."""
        told = member.load_push
        if told is None:
            return _nothing
        refusal = push_refusal(told, self._reach) if member.owner == "registered" else ""
        decode = self._decoders.get(member.pool)
        if decode is None:
            refusal = "engines of this dialect push no load; take load_push away"
        if decode is None or refusal:
            log.warning("load push not listened to", pool=member.pool, backend=member.id, reason=refusal)
            return _nothing
        self._pools[member.id] = member.pool
        self._listen(member.id, told, decode)
        return partial(self._end, member.id)

    def _listen(self, backend: str, told: LoadPush, decode: Decode) -> None:
        # imported only when there is something to hear; see `ZeroMq`
        from backends.clients.load_subscriber import LoadSubscriber

        deps, take = self._deps, partial(self.watch.heard, backend)
        subscriber = LoadSubscriber(self._zeromq.context(), told.endpoints, take, deps.clock, deps.loop)
        self.watch.add(backend, LoadReports(told.ranks, decode), subscriber)

    def _end(self, backend: str) -> Awaitable[None]:
        self.watch.remove(backend)
        self._pools.pop(backend, None)
        return _nothing()

    def _counted(self, backend: str, reports: int, gaps: int) -> None:
        self._count(self._pools[backend], backend, reports, gaps)


def push_refusal(told: LoadPush, reach: Reach) -> str:
    """Why this push must not be listened to on somebody else's word; empty when it may. Every rank's port counts."""
    for endpoint in told.endpoints:
        parts = urlsplit(endpoint)
        if refusal := reach.refusal(parts.hostname or "", parts.port or 0):
            return f"{endpoint} {refusal}"
    return ""


def _nothing() -> Awaitable[None]:
    return asyncio.sleep(0)
