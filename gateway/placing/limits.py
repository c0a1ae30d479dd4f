"""The concurrency limit of each backend in one worker: feeds `backends.concurrency_limit` with observations, and writes the limits
that it finds to the load table.

All processes that send to an engine share its limit. Each of several processes takes its share by their number
(`tenancy.ports.Presence`); while the number is unknown, each may add as much as the engine reports to have left.
"""

from collections import deque
from math import inf
from typing import Final

import msgspec

from backends.concurrency_limit import Heard, LimitBounds, Limiter
from backends.signals import Signals
from routing.load import Charge, LoadTable

SILENT_S: Final = 3.0
"""Seconds after which an engine's report of its load is no evidence any more; the same as `gateway.placing.ground.STALE_S`."""
NEAR: Final = 0.05
"""Token limits that differ by less than this share count as equal: each change wakes waiting requests."""


class Part(msgspec.Struct, frozen=True):
    """The share of a pool's engines that belongs to this process."""

    processes: int = 1
    """Processes that send to the pool, this one included; 0: unknown."""
    rank: int = 0
    """The place of this process among them, from 0; it decides which processes get the remainder of a division."""


class Shown(msgspec.Struct, frozen=True):
    """The concurrency limit of one backend, for display."""

    requests: float
    """Requests that the whole engine is taken to bear."""
    tokens: float | None
    """Uncached prompt tokens that the whole engine is taken to bear; None while unknown."""
    own: float
    """Requests that this worker may have in flight there; the sum where several workers are joined."""


ALONE: Final = Part()
UNKNOWN: Final = Part(0)


class _Backend:
    """One backend with its limiter."""

    __slots__ = ("board", "heard_at", "limiter", "pool", "supposed")

    def __init__(self, pool: str, board: LoadTable, bounds: LimitBounds) -> None:
        self.pool = pool
        self.board = board
        self.limiter = Limiter(bounds)
        self.heard_at: float | None = None
        self.supposed: deque[tuple[float, Charge]] = deque()
        """Requests whose first token cannot be seen, with the time it is due. Bounded by the requests sent within that time."""


class Limits:
    """The limits of every backend that has one; pools whose limits are off have no entries."""

    def __init__(self) -> None:
        self._backends: dict[str, _Backend] = {}
        self._parts: dict[str, Part] = {}
        self._counted: dict[str, Part] = {}
        """The last share with a known number of processes, by pool: engines that report no load are shared by it."""

    def add(self, pool: str, backend_id: str, board: LoadTable, bounds: LimitBounds | None) -> None:
        """Add a backend that joins; `bounds` None for a backend without a limit."""
        if bounds is not None:
            self._backends[backend_id] = backend = _Backend(pool, board, bounds)
            self._write(backend_id, backend)

    def drop(self, backend_id: str) -> None:
        """Remove a backend that has left."""
        self._backends.pop(backend_id, None)

    def restarted(self, backend_id: str) -> None:
        """Restart the search for the limit of a backend whose process is a new one."""
        if (backend := self._backends.get(backend_id)) is not None:
            backend.limiter.restarted()
            self._write(backend_id, backend)

    def share(self, pool: str, part: Part) -> None:
        """Set this process's share of a pool's engines."""
        if self._parts.get(pool) != part:
            self._parts[pool] = part
            if part.processes:
                self._counted[pool] = part
            for backend_id, backend in self._backends.items():
                if backend.pool == pool:
                    self._write(backend_id, backend)

    def part(self, pool: str) -> Part:
        """This process's share of a pool, as it was set last."""
        return self._parts.get(pool, ALONE)

    def of(self, backend_id: str) -> Limiter | None:
        """The limiter of a backend, which is to be told of first tokens and of ends of answers; None where there is no limit."""
        backend = self._backends.get(backend_id)
        return None if backend is None else backend.limiter

    def suppose(self, backend_id: str, due: float, charge: Charge) -> None:
        """Note a request whose first token cannot be seen; at `due` it is taken to have come."""
        if (backend := self._backends.get(backend_id)) is not None:
            backend.supposed.append((due, charge))

    def reported(self, backend_id: str, signals: Signals, now: float) -> None:
        """Take an engine's report of its load."""
        backend = self._backends.get(backend_id)
        if backend is not None:
            backend.heard_at = now if signals.running is not None and signals.waiting is not None else None
            self._look(backend_id, backend, signals, now)

    def tick(self, now: float) -> None:
        """Update the limits of backends that have not reported for `SILENT_S`; called twice a second."""
        for backend_id, backend in self._backends.items():
            if backend.heard_at is None or now - backend.heard_at > SILENT_S:
                self._look(backend_id, backend, None, now)

    def _look(self, backend_id: str, backend: _Backend, signals: Signals | None, now: float) -> None:
        supposed = backend.supposed
        board = backend.board
        while supposed and supposed[0][0] <= now:
            board.begun(supposed.popleft()[1])
        own = board.in_flight(backend_id)
        begun = board.begun_on(backend_id)
        if signals is None:
            heard = Heard(own, begun)
        else:
            heard = Heard(own, begun, signals.running, signals.waiting, signals.preemptions, signals.generated_tokens)
        backend.limiter.look(heard, self._counted.get(backend.pool, ALONE).processes, now)
        self._write(backend_id, backend)

    def _write(self, backend_id: str, backend: _Backend) -> None:
        limiter = backend.limiter
        board = backend.board
        if limiter.told and not self.part(backend.pool).processes:
            requests, tokens = limiter.room()
        else:
            part = self._counted.get(backend.pool, ALONE)
            requests, tokens = limiter.share(part.processes, part.rank)
        row = board.row_of[backend_id]
        limit_tokens = board.limit_tokens[row]
        if requests != board.limit[row] or not (limit_tokens == tokens or abs(tokens - limit_tokens) < NEAR * limit_tokens):
            board.set_limit(backend_id, requests, tokens)

    def shown(self, backend_id: str) -> Shown | None:
        """The limit of a backend, for display; None where there is no limit."""
        backend = self._backends.get(backend_id)
        if backend is None:
            return None
        limiter = backend.limiter
        board = backend.board
        tokens = None if limiter.tokens == inf else float(round(limiter.tokens))
        return Shown(float(round(limiter.whole)), tokens, board.limit[board.row_of[backend_id]])
