"""The workers of one host poll each engine once for all of them, over `gateway.process.sibling_bus`.

Each backend has a reader among the workers (`gateway.fleet.readers`), which polls it as `gateway.fleet.health.FleetWatch` does and tells
the others, whether the engine was well or not: to each worker's Health it is a poll like its own. Backends whose adapters are loaded at run
time are polled by every worker: an engine's list of adapters is compared with what that worker has changed meanwhile.

    message = [[pool, backend, valid_s, result], ...]
"""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from backends.ports import PollResult
from domain.clock import Clock
from gateway.fleet.readers import Readers
from gateway.process.sibling_bus import Sibling, TopicNumber

MAX_BYTES_PER_S: Final = 1 << 20
"""Bytes a second that a worker tells each sibling: some 5,000 results. What is beyond it is not told, and polled by everyone."""
LATE_S: Final = 0.5
"""How much later than its reader meant a result may come until the others poll themselves."""
MAX_VALID_S: Final = 86_400.0

Take = Callable[[str, str, PollResult], None]
"""Takes a result: the pool, the backend, and what was found."""


class SharedPoll(msgspec.Struct, array_like=True, frozen=True):
    """The result of one poll."""

    pool: str
    backend: str
    valid_s: Annotated[float, msgspec.Meta(ge=0.0, le=2 * MAX_VALID_S)]
    """Seconds from now until the reader means to have the next one."""
    result: PollResult


class SharedPolls:
    """Tells the results of this worker's polls, and takes those of its siblings.

    Args:
        take: called with every result; for backends that have left, too.
    """

    kind = TopicNumber.POLLS
    between_hosts = False
    max_bytes_per_s = MAX_BYTES_PER_S

    def __init__(self, me: Sibling, take: Take, clock: Clock) -> None:
        self.tell_soon: Callable[[], None] = lambda: None
        """Asks the bus to call `batch` soon; set by the worker that has a bus."""
        self._readers = Readers(me, clock)
        self._take = take
        self._clock = clock
        self._news: dict[str, SharedPoll] = {}

    def covered_s(self, backend: str) -> float:
        """For how many seconds this worker need not poll this backend, because another one does; 0 where it has to."""
        return self._readers.covered_s(backend)

    def tell(self, pool: str, backend: str, valid_s: float, result: PollResult) -> None:
        """Tell the siblings a result; the next one is meant to be there in `valid_s`."""
        if self._readers.there:
            self._news[backend] = SharedPoll(pool, backend, min(valid_s, MAX_VALID_S), result)
            self.tell_soon()

    def batch(self, max_bytes: int) -> bytes:
        """The next message, for `SiblingBus`. Results that do not fit are dropped: newer ones follow."""
        if not self._news:
            return b""
        payload = msgspec.msgpack.encode(list(self._news.values()))
        self._news.clear()
        return payload if len(payload) <= max_bytes else b""

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a sibling's message. Raises ValueError when it is none."""
        try:
            told = msgspec.msgpack.decode(payload, type=list[SharedPoll])
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        now = self._clock()
        for poll in told:
            self._readers.told(poll.backend, now + poll.valid_s + LATE_S)
            self._take(poll.pool, poll.backend, poll.result)

    def joined(self, sibling: Sibling) -> None:
        """Share the backends with it."""
        self._readers.joined(sibling)

    def left(self, sibling: Sibling) -> None:
        """Share its backends among those that are left."""
        self._readers.left(sibling)

    def forget(self, backend: str) -> None:
        """A backend has left the fleet."""
        self._readers.forget(backend)
        self._news.pop(backend, None)
