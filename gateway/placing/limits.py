"""How much each backend of one worker may be given: hands `backends.limiter` what is seen, and the Board what is found.

An engine's limit is everybody's who sends there. Of several processes each takes its part by how many they are (`tenancy.ports.Presence`);
while that is not known, what the engine says is left is what each may add.
"""

from collections import deque
from math import inf
from typing import Final

import msgspec

from backends.limiter import Bounds, Heard, Limiter
from backends.signals import Signals
from routing.board import Board, Charge

SILENT_S: Final = 3.0
"""Seconds after which what an engine said of its load is no evidence any more; that of `gateway.placing.ground.STALE_S`."""
NEAR: Final = 0.05
"""Token limits that differ by less are one: each change wakes who waits."""


class Part(msgspec.Struct, frozen=True):
    """Which part of a pool's engines is this process's."""

    processes: int = 1
    """That send there, this one included; 0: nobody knows."""
    rank: int = 0


class Shown(msgspec.Struct, frozen=True):
    """One backend's limit, for whoever looks from outside."""

    requests: float
    """That the whole engine is taken to bear."""
    tokens: float | None
    """Uncached prompt tokens likewise; None while unknown."""
    own: float
    """Requests that this worker may have there; of several workers all of theirs."""


ALONE: Final = Part()
UNKNOWN: Final = Part(0)


class _Backend:
    """One of them."""

    __slots__ = ("board", "heard_at", "limiter", "pool", "supposed")

    def __init__(self, pool: str, board: Board, bounds: Bounds) -> None:
        self.pool = pool
        self.board = board
        self.limiter = Limiter(bounds)
        self.heard_at: float | None = None
        self.supposed: deque[tuple[float, Charge]] = deque()
        """Requests whose first token does not show, by when it should have come. Bounded by what is sent within that time."""


class Limits:
    """Every backend that has a limit. A pool whose limits are off has none here."""

    def __init__(self) -> None:
        self._backends: dict[str, _Backend] = {}
        self._parts: dict[str, Part] = {}
        self._counted: dict[str, Part] = {}
        """The last of which the number was known: engines that tell nothing of their load are shared by that."""

    def add(self, pool: str, backend_id: str, board: Board, bounds: Bounds | None) -> None:
        """A backend joins."""
        if bounds is not None:
            self._backends[backend_id] = one = _Backend(pool, board, bounds)
            self._write(backend_id, one)

    def drop(self, backend_id: str) -> None:
        """It has left."""
        self._backends.pop(backend_id, None)

    def restarted(self, backend_id: str) -> None:
        """Another process is behind it."""
        if (one := self._backends.get(backend_id)) is not None:
            one.limiter.restarted()
            self._write(backend_id, one)

    def share(self, pool: str, part: Part) -> None:
        """How many processes send to a pool's engines, from now on."""
        if self._parts.get(pool) != part:
            self._parts[pool] = part
            if part.processes:
                self._counted[pool] = part
            for backend_id, one in self._backends.items():
                if one.pool == pool:
                    self._write(backend_id, one)

    def part(self, pool: str) -> Part:
        """What was said of it last."""
        return self._parts.get(pool, ALONE)

    def of(self, backend_id: str) -> Limiter | None:
        """For first tokens and ends of answers; None where there is no limit."""
        one = self._backends.get(backend_id)
        return None if one is None else one.limiter

    def suppose(self, backend_id: str, due: float, charge: Charge) -> None:
        """This request's first token will not show; at `due` it is taken to have come."""
        if (one := self._backends.get(backend_id)) is not None:
            one.supposed.append((due, charge))

    def told(self, backend_id: str, signals: Signals, now: float) -> None:
        """The engine told of its load."""
        one = self._backends.get(backend_id)
        if one is not None:
            one.heard_at = now if signals.running is not None and signals.waiting is not None else None
            self._look(backend_id, one, signals, now)

    def tick(self, now: float) -> None:
        """Look at those that have not told lately; to be called about twice a second."""
        for backend_id, one in self._backends.items():
            if one.heard_at is None or now - one.heard_at > SILENT_S:
                self._look(backend_id, one, None, now)

    def _look(self, backend_id: str, one: _Backend, signals: Signals | None, now: float) -> None:
        supposed, board = one.supposed, one.board
        while supposed and supposed[0][0] <= now:
            board.begun(supposed.popleft()[1])
        own, begun = board.in_flight(backend_id), board.begun_on(backend_id)
        if signals is None:
            heard = Heard(own, begun)
        else:
            heard = Heard(own, begun, signals.running, signals.waiting, signals.preemptions, signals.generated_tokens)
        one.limiter.look(heard, self._counted.get(one.pool, ALONE).processes, now)
        self._write(backend_id, one)

    def _write(self, backend_id: str, one: _Backend) -> None:
        limiter, board = one.limiter, one.board
        if limiter.told and not self.part(one.pool).processes:
            requests, tokens = limiter.room()
        else:
            part = self._counted.get(one.pool, ALONE)
            requests, tokens = limiter.share(part.processes, part.rank)
        row = board.row_of[backend_id]
        known = board.limit_tokens[row]
        if requests != board.limit[row] or not (known == tokens or abs(tokens - known) < NEAR * known):
            board.set_limit(backend_id, requests, tokens)

    def shown(self, backend_id: str) -> Shown | None:
        """None where there is no limit."""
        one = self._backends.get(backend_id)
        if one is None:
            return None
        limiter, board = one.limiter, one.board
        tokens = None if limiter.tokens == inf else float(round(limiter.tokens))
        return Shown(float(round(limiter.whole)), tokens, board.limit[board.row_of[backend_id]])
