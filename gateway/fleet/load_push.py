"""Keeps the load that engines push current: one subscription per backend that pushes its load.

`LoadListener` builds the subscription when a backend joins, and ends it when the backend leaves. `LoadWatch` shows every report as it
arrives, and twice a second looks for backends that fell silent. Every worker subscribes for itself, as it reads metrics for itself: reports
are joined with the requests that this worker alone has in flight.

The endpoint of a registered backend is checked as its URL is (`push_refusal`). ZeroMQ resolves names by itself, so such an endpoint has to
be an IP address.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit

import structlog

from backends.load_reports import Decode, LoadReports, PushState
from backends.reach import Reach
from domain.clock import Clock
from domain.membership import FOUND, LoadPush, Member
from gateway.deps import Deps, Live
from gateway.fleet.loops import ZeroMq
from gateway.fleet.signals import SignalBoard
from gateway.ticks import next_tick

log = structlog.get_logger("tidegate.signals")

TICK_S: Final = 0.5
"""How often silence is looked for; reports themselves are applied as they arrive."""

COUNTED_WITHIN_S: Final = 0.3
"""How long a request may be in flight until reports count it: the engine reads and tokenizes it first and hands it to its scheduler,
which takes new requests between two steps, and SGLang counts a request in its first prefill neither as running nor as waiting.
Of 7 requests sent at once to SGLang 0.5.23 on CPU a report after 0.16 s counted none, a report after 0.29 s all. To count such a
request twice for a moment is safer than not to count it at all."""


class LoadSubscription(Protocol):
    """The sockets of one backend."""

    trouble: str
    """Why nothing is received; empty while the subscription works."""

    def tick(self) -> None:
        """Keep the subscription going; called about once a second, the first call starts it."""
        ...

    def close(self) -> None:
        """Close the sockets."""
        ...


class _Pusher:
    """One backend that pushes its load: its reports, and the subscription that brings them."""

    def __init__(self, reports: LoadReports, subscription: LoadSubscription) -> None:
        self.reports = reports
        self.subscription = subscription


class LoadWatch:
    """Writes the pushed load to the `SignalBoard`, and the state of each subscription to `live.pushes`.

    Args:
        count: called with a backend and its new reports and gaps.
    """

    def __init__(
        self,
        live: Live,
        signal_board: SignalBoard,
        clock: Clock,
        count: Callable[[str, int, int], None] = lambda backend, reports, gaps: None,
    ) -> None:
        self._live = live
        self._signal_board = signal_board
        self._clock = clock
        self._count = count
        self._pushers: dict[str, _Pusher] = {}

    def add(self, backend: str, reports: LoadReports, subscription: LoadSubscription) -> None:
        """Follow one more backend; its messages are to be handed to `heard`."""
        self._pushers[backend] = _Pusher(reports, subscription)

    def remove(self, backend: str) -> None:
        """Close the subscription of a backend and forget the load it pushed."""
        pusher = self._pushers.pop(backend, None)
        if pusher is not None:
            pusher.subscription.close()
        self._live.pushes.pop(backend, None)
        self._signal_board.silent(backend)

    def take_message(self, backend: str, rank: int, number: int | None, payload: bytes) -> None:
        """Take a message of one rank of a backend."""
        pusher = self._pushers.get(backend)
        if pusher is None:
            return  # the backend left meanwhile
        now = self._clock()
        if pusher.reports.take_message(rank, number, payload, now):
            self._show(backend, pusher, now)

    def _show(self, backend: str, pusher: _Pusher, now: float) -> None:
        pushed = pusher.reports.pushed(now)
        if pushed is None:
            self._signal_board.silent(backend)
        else:
            self._signal_board.push(backend, pushed, now - COUNTED_WITHIN_S)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await next_tick(TICK_S)

    def look(self) -> None:
        """Evaluate every subscription once."""
        now = self._clock()
        for backend, pusher in self._pushers.items():
            pusher.subscription.tick()
            state = pusher.reports.state(now)
            if pusher.subscription.trouble:
                state = PushState(pusher.subscription.trouble, state.counts)
            if pusher.reports.pushed(now) is None:
                self._signal_board.silent(backend)
            before = self._live.pushes.get(backend)
            self._live.pushes[backend] = state
            reports, gaps = (before.counts.reports, before.counts.gaps) if before else (0, 0)
            self._count(backend, state.counts.reports - reports, state.counts.gaps - gaps)
            self._log_change(backend, "" if before is None else before.reason, state.reason, first=before is None)

    def _log_change(self, backend: str, before: str, reason: str, *, first: bool) -> None:
        if bool(reason) == bool(before) and not first:
            return  # silence is logged once, not at every evaluation
        if reason and not first:
            log.warning("load push not heard", backend=backend, reason=reason)
        elif not reason:
            log.info("load pushed", backend=backend)

    async def close(self) -> None:
        """Close every subscription."""
        for backend in list(self._pushers):
            self.remove(backend)


CountPush = Callable[[str, str, int, int], None]
"""Called with (pool, backend, new reports, new gaps)."""


class LoadListener:
    """Subscribes to the load reports of every backend that pushes them; one per worker. `attach` is a `gateway.fleet.roster.Attach`.

    Args:
        decoders: how reports are decoded, by pool; only pools whose engines can push their load.
    """

    def __init__(
        self, deps: Deps, reach: Reach, decoders: Mapping[str, Decode], signal_board: SignalBoard, count: CountPush, zeromq: ZeroMq
    ) -> None:
        self._deps = deps
        self._reach = reach
        self._decoders = decoders
        self._count = count
        self._zeromq = zeromq
        self._pools: dict[str, str] = {}
        self.watch = LoadWatch(deps.live, signal_board, deps.clock, self._counted)

    def attach(self, member: Member) -> Callable[[], Awaitable[None]]:
        """Subscribe to a backend, if it pushes its load and its endpoint is allowed. Returns how to end the subscription."""
        push = member.load_push
        if push is None:
            return _nothing
        refusal = push_refusal(push, self._reach) if member.owner in FOUND else ""
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

        on_message = partial(self.watch.take_message, backend)
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
