"""What the workers of a gateway tell each other of their load, on one host and between hosts: each counts the requests of all in its load
tables.

Without it a worker sees its siblings' requests when an engine reports them, a tenth of a second late and without their tokens; four workers
then send their requests to the same engine that looks idle. Told are sums per backend (`routing.siblings`), within the bus's batch time of
a change; nothing is told while nothing changes. Own limits go on counting own requests, and the seconds of prompts that may wait in an
engine (`hold_s`) count for all that tell each other: they are divided among the others only.
"""

import itertools
from collections.abc import Callable
from typing import Final

import msgspec

from domain.clock import Clock
from gateway.placement.pool_state import PoolStates, Sessions
from gateway.process.sibling_bus import Sibling, TopicNumber
from routing.load import LoadTable
from routing.siblings import HearSiblings, SiblingNews, TellSiblings

MAX_BYTES_PER_S: Final = 256 * 1024
"""Bytes a second that a worker tells each sibling: 40 batches of some 100 backends."""


class SharedLoad:
    """Tells the load of this worker, and takes that of its siblings.

    Args:
        pool_states: whose load tables are told, and take what siblings tell.
    """

    kind = TopicNumber.LOAD
    between_hosts = True
    max_bytes_per_s = MAX_BYTES_PER_S

    def __init__(self, pool_states: PoolStates, clock: Clock) -> None:
        self.tell_soon: Callable[[], None] = lambda: None
        """Asks the bus to call `batch` soon; set by the worker that has a bus."""
        self._pool_states = pool_states
        self._clock = clock
        self._there: set[Sibling] = set()
        self._numbers: dict[Sibling, int] = {}
        """This worker's own numbers for its siblings, from 1 on: processes of two hosts may have one id."""
        self._given = itertools.count(1)
        self._tell = TellSiblings(pool_states.generation, 0)
        self._hear = HearSiblings(pool_states.generation, 0, self._table_of, pool_states.index, lambda _: Sessions(0))

    def batch(self, max_bytes: int) -> bytes:
        """The next message, for `SiblingBus`; put off while it would be larger than that."""
        news = self._tell.batch([pool_state.load_table for pool_state in self._pool_states.values()], self._clock(), 0)
        if news is None:
            return b""
        message = msgspec.msgpack.encode(news)
        if len(message) > max_bytes:
            self._tell.joined()  # with everything, then
            self.tell_soon()
            return b""
        return message

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a sibling's message. Raises ValueError when it is none."""
        try:
            news = msgspec.msgpack.decode(payload, type=SiblingNews)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        if len(news.loads) > len(news.backends):
            raise ValueError(f"the load of {len(news.loads)} backends is told, and {len(news.backends)} are named")
        if news.prompts:
            raise ValueError("prompts are told as dispatches")
        number = self._numbers.get(sibling)
        if number is None:
            number = self._numbers[sibling] = next(self._given)
        self._hear.hear(msgspec.structs.replace(news, sender=number), self._clock())

    def joined(self, sibling: Sibling) -> None:
        """Tell it, and all others again, everything that is in flight."""
        self._there.add(sibling)
        self._tell.joined()
        self._linked()
        self.tell_soon()

    def left(self, sibling: Sibling) -> None:
        """What an ended sibling had in flight counts no more."""
        self._there.discard(sibling)
        if (number := self._numbers.pop(sibling, None)) is not None:
            self._hear.left(number)
        self._linked()

    def _linked(self) -> None:
        changed = self.tell_soon if self._there else None
        for pool_state in self._pool_states.values():
            pool_state.load_table.changed = changed
        self._pool_states.set_siblings(len(self._there))

    def _table_of(self, backend_id: str) -> LoadTable | None:
        pool_state = self._pool_states.of(backend_id)
        return pool_state.load_table if pool_state is not None else None
