"""Keeps what engines push of their load current: every report is shown as it comes, and twice a second it is asked who is silent.

Every worker listens for itself, as it reads for itself: what it shows is joined with what it alone has in flight.
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
"""How often silence is looked for; reports themselves are taken as they come."""

COUNTED_WITHIN_S: Final = 0.3
"""How long a request may be under way until reports count it: the engine reads, tokenizes and hands it to its scheduler first,
which looks for new ones between two steps, and SGLang counts what is in its first prefill neither as running nor as waiting.
Of 7 requests sent at once to SGLang 0.5.23 on CPU a report after 0.16 s knew none, one after 0.29 s all. Counted twice, for a
moment, such a request is safer than not counted at all."""


class Subscription(Protocol):
    """The sockets of one backend."""

    trouble: str

    def tick(self) -> None:
        """To be called about once a second, first to begin."""
        ...

    def close(self) -> None:
        """Close them."""
        ...


class _Ear:
    """One backend that is listened to."""

    def __init__(self, reports: LoadReports, subscription: Subscription) -> None:
        self.reports = reports
        self.subscription = subscription


class LoadWatch:
    """Shows on the board what is pushed, and in `live.pushes` how that stands.

    Args:
        count: told of each backend's new reports and gaps.
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
        self._ears: dict[str, _Ear] = {}

    def add(self, backend: str, reports: LoadReports, subscription: Subscription) -> None:
        """Listen to one more backend; hand its messages to `heard`."""
        self._ears[backend] = _Ear(reports, subscription)

    def remove(self, backend: str) -> None:
        """Listen to it no more, and forget what it pushed."""
        ear = self._ears.pop(backend, None)
        if ear is not None:
            ear.subscription.close()
        self._live.pushes.pop(backend, None)
        self._board.silent(backend)

    def heard(self, backend: str, rank: int, number: int | None, payload: bytes) -> None:
        """A message of this backend's rank."""
        ear = self._ears.get(backend)
        if ear is None:
            return  # it left meanwhile
        now = self._clock()
        if ear.reports.heard(rank, number, payload, now):
            self._show(backend, ear, now)

    def _show(self, backend: str, ear: _Ear, now: float) -> None:
        pushed = ear.reports.pushed(now)
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
        """One look at every backend."""
        now = self._clock()
        for backend, ear in self._ears.items():
            ear.subscription.tick()
            state = ear.reports.state(now)
            if ear.subscription.trouble:
                state = PushState(ear.subscription.trouble, state.counts)
            if ear.reports.pushed(now) is None:
                self._board.silent(backend)
            before = self._live.pushes.get(backend)
            self._live.pushes[backend] = state
            reports, gaps = (before.counts.reports, before.counts.gaps) if before else (0, 0)
            self._count(backend, state.counts.reports - reports, state.counts.gaps - gaps)
            self._say(backend, "" if before is None else before.reason, state.reason, first=before is None)

    def _say(self, backend: str, before: str, reason: str, *, first: bool) -> None:
        if bool(reason) == bool(before) and not first:
            return  # silence is said once and not each second
        if reason and not first:
            log.warning("load push not heard", backend=backend, reason=reason)
        elif not reason:
            log.info("load pushed", backend=backend)

    async def close(self) -> None:
        """Close every subscription."""
        for backend in list(self._ears):
            self.remove(backend)
