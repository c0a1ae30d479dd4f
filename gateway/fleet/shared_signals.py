"""The workers of one host read each engine once for all of them, over `gateway.process.sibling_bus`.

Each backend has a reader among the workers (`gateway.fleet.readers`). It reads as `gateway.fleet.signals.SignalWatch` does and tells the
others, which take its reading as if it were theirs: the workers of a host have one monotonic clock.

A reader whose own pool is at rest does not know that the others are asked, so a worker that is asked says so, once in `ASKED_EVERY_S`.

    message = [[[backend, asked_at, valid_s, signals], ...], [pool, ...]]
"""

from collections.abc import Callable
from typing import Final

import msgspec

from backends.signals import Signals
from domain.clock import Clock
from gateway.fleet.readers import Readers
from gateway.placement.pool_state import PoolStates
from gateway.process.sibling_bus import Sibling, TopicNumber

MAX_BYTES_PER_S: Final = 4 << 20
"""Bytes a second that a worker tells each sibling: some 10,000 readings. What is beyond it is not told, and read by everyone."""
ASKED_EVERY_S: Final = 1.0
"""How often a worker says that a pool is asked; below `rest.AT_REST_S`."""
LATE_S: Final = 0.1
"""How much later than its reader meant a reading may come until the others read themselves."""

Take = Callable[[str, Signals, float], None]
"""Takes a reading: the backend, its signals, and when it was asked for them."""


class SharedReading(msgspec.Struct, array_like=True, frozen=True):
    """One reading of one engine."""

    backend: str
    asked_at: float
    """By the clock of the host."""
    valid_s: float
    """Seconds from then until the reader means to have the next one."""
    signals: Signals


class SharedSignals:
    """Tells this worker's readings of engines, and takes those of its siblings.

    Args:
        take: called with every reading of a backend of this worker's fleet.
    """

    kind = TopicNumber.SIGNALS
    between_hosts = False
    max_bytes_per_s = MAX_BYTES_PER_S

    def __init__(self, me: Sibling, pool_states: PoolStates, take: Take, clock: Clock) -> None:
        self.tell_soon: Callable[[], None] = lambda: None
        """Asks the bus to call `batch` soon; set by the worker that has a bus."""
        self._readers = Readers(me, clock)
        self._pool_states = pool_states
        self._take = take
        self._clock = clock
        self._news: dict[str, SharedReading] = {}
        self._asked: dict[str, float] = {}
        """When this worker last said that a pool is asked."""
        self._asked_news: set[str] = set()

    def covered_s(self, backend: str) -> float:
        """For how many seconds this worker need not read this backend, because another one does; 0 where it has to."""
        return self._readers.covered_s(backend)

    def tell(self, backend: str, asked_at: float, valid_s: float, signals: Signals) -> None:
        """Tell the siblings a reading; the next one is meant to be there `valid_s` after this one was asked for."""
        if self._readers.there:
            self._news[backend] = SharedReading(backend, asked_at, valid_s, signals)
            self.tell_soon()

    def asked(self, pool: str) -> None:
        """Say that requests of this worker come to a pool."""
        now = self._clock()
        if self._readers.there and now - self._asked.get(pool, 0.0) >= ASKED_EVERY_S:
            self._asked[pool] = now
            self._asked_news.add(pool)
            self.tell_soon()

    def batch(self, max_bytes: int) -> bytes:
        """The next message, for `SiblingBus`. Readings that do not fit are dropped: newer ones follow."""
        if not self._news and not self._asked_news:
            return b""
        payload = msgspec.msgpack.encode((list(self._news.values()), sorted(self._asked_news)))
        if len(payload) > max_bytes:
            payload = msgspec.msgpack.encode(((), sorted(self._asked_news)))
        self._news.clear()
        self._asked_news.clear()
        return payload if len(payload) <= max_bytes else b""

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a sibling's message. Raises ValueError when it is none."""
        try:
            readings, pools = msgspec.msgpack.decode(payload, type=tuple[list[SharedReading], list[str]])
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        for reading in readings:
            if self._pool_states.of(reading.backend) is not None:
                self._readers.told(reading.backend, reading.asked_at + reading.valid_s + LATE_S)
                self._take(reading.backend, reading.signals, reading.asked_at)
        for pool in pools:
            if (pool_state := self._pool_states.get(pool)) is not None:
                pool_state.rest.asked_elsewhere(self._clock())

    def joined(self, sibling: Sibling) -> None:
        """Share the backends with it."""
        self._readers.joined(sibling)
        self._asked.clear()

    def left(self, sibling: Sibling) -> None:
        """Share its backends among those that are left."""
        self._readers.left(sibling)

    def forget(self, backend: str) -> None:
        """A backend has left the fleet."""
        self._readers.forget(backend)
        self._news.pop(backend, None)
