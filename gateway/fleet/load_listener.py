"""Builds the subscription to each backend that pushes its load when the backend joins, and ends it when the backend leaves.

The endpoint of a registered backend is checked as its URL is. ZeroMQ resolves names by itself, so such an endpoint has to be an IP
address.
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
"""Called with (pool, backend, new reports, new gaps)."""


class LoadListener:
    """Subscribes to the load reports of every backend that pushes them; one per worker. `attach` is a `gateway.fleet.roster.Attach`.

    Args:
        decoders: how reports are decoded, by pool; only pools whose engines can push their load.
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
        """Subscribe to a backend, if it pushes its load and its endpoint is allowed. Returns how to end the subscription."""
        push = member.load_push
        if push is None:
            return _nothing
        refusal = push_refusal(push, self._reach) if member.owner == "registered" else ""
        decode = self._decoders.get(member.pool)
        if decode is None:
            refusal = "engines of this dialect push no load; take load_push away"
        if decode is None or refusal:
            log.warning("load push not listened to", pool=member.pool, backend=member.id, reason=refusal)
            return _nothing
        self._pools[member.id] = member.pool
        self._listen(member.id, push, decode)
        return partial(self._end, member.id)

    def _listen(self, backend: str, push: LoadPush, decode: Decode) -> None:
        # imported only when a backend pushes its load; `ZeroMq` gives the reason
        from backends.clients.zmq import LoadSubscriber

        on_message = partial(self.watch.heard, backend)
        subscriber = LoadSubscriber(self._zeromq.context(), push.endpoints, on_message, self._deps.clock, self._deps.loop)
        self.watch.add(backend, LoadReports(push.ranks, decode), subscriber)

    def _end(self, backend: str) -> Awaitable[None]:
        self.watch.remove(backend)
        self._pools.pop(backend, None)
        return _nothing()

    def _counted(self, backend: str, reports: int, gaps: int) -> None:
        self._count(self._pools[backend], backend, reports, gaps)


def push_refusal(push: LoadPush, reach: Reach) -> str:
    """Why the push endpoints of a registered backend are not allowed, the port of every rank included; empty when they are."""
    for endpoint in push.endpoints:
        parts = urlsplit(endpoint)
        if refusal := reach.refusal(parts.hostname or "", parts.port or 0):
            return f"{endpoint} {refusal}"
    return ""


def _nothing() -> Awaitable[None]:
    return asyncio.sleep(0)
