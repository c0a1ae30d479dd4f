"""Keeps the load that engines push current: every report is shown as it arrives, and twice a second backends that fell silent are
looked for.

Every worker subscribes for itself, as it reads metrics for itself: reports are joined with the requests that this worker alone has
in flight.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from backends.load_reports import LoadReports, PushState
from domain.clock import Clock
from gateway.deps import Live
from gateway.fleet.signal_board import SignalBoard

log = structlog.get_logger("tidegate.signals")

TICK_S: Final = 0.5
"""How often silence is looked for; reports themselves are applied as they arrive."""

COUNTED_WITHIN_S: Final = 0.3
"""How long a request may be in flight until reports count it: the engine reads and tokenizes it first and hands it to its scheduler,
which takes new requests between two steps, and SGLang counts a request in its first prefill neither as running nor as waiting.
Of 7 requests sent at once to SGLang 0.5.23 on CPU a report after 0.16 s counted none, a report after 0.29 s all. To count such a
request twice for a moment is safer than not to count it at all."""


class Subscription(Protocol):
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

    def __init__(self, reports: LoadReports, subscription: Subscription) -> None:
        self.reports = reports
        self.subscription = subscription


class LoadWatch:
    """Writes the pushed load to the signal board, and the state of each subscription to `live.pushes`.

    Args:
        count: called with a backend and its new reports and gaps.
    """

    def __init__(
        self,
        live: Live,
        board: SignalBoard,
        clock: Clock,
        count: Callable[[str, int, int], None] = lambda backend, reports, gaps: None,
    ) -> None:
        self._live = live
        self._board = board
        self._clock = clock
        self._count = count
        self._pushers: dict[str, _Pusher] = {}

    def add(self, backend: str, reports: LoadReports, subscription: Subscription) -> None:
        """Follow one more backend; its messages are to be handed to `heard`."""
        self._pushers[backend] = _Pusher(reports, subscription)

    def remove(self, backend: str) -> None:
        """Close the subscription of a backend and forget the load it pushed."""
        pusher = self._pushers.pop(backend, None)
        if pusher is not None:
            pusher.subscription.close()
        self._live.pushes.pop(backend, None)
        self._board.silent(backend)

    def heard(self, backend: str, rank: int, number: int | None, payload: bytes) -> None:
        """Take a message of one rank of a backend."""
        pusher = self._pushers.get(backend)
        if pusher is None:
            return  # the backend left meanwhile
        now = self._clock()
        if pusher.reports.heard(rank, number, payload, now):
            self._show(backend, pusher, now)

    def _show(self, backend: str, pusher: _Pusher, now: float) -> None:
        pushed = pusher.reports.pushed(now)
        if pushed is None:
            self._board.silent(backend)
        else:
            self._board.push(backend, pushed, now - COUNTED_WITHIN_S)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """Evaluate every subscription once."""
        now = self._clock()
        for backend, pusher in self._pushers.items():
            pusher.subscription.tick()
            state = pusher.reports.state(now)
            if pusher.subscription.trouble:
                state = PushState(pusher.subscription.trouble, state.counts)
            if pusher.reports.pushed(now) is None:
                self._board.silent(backend)
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
