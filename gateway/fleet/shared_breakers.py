"""The workers of one host tell each other the states of their circuit breakers (`backends.breaker`), over `gateway.process.sibling_bus`.

A breaker that opens in one worker is open in its siblings within 50 ms, and it closes in all of them when a request of any worker shows
that the backend works. A half-open backend is tried once per host: a sibling's breaker stays open `APART_S` longer for each worker that
comes before it, and a worker whose request tries the backend says so. Two workers can try it within the same 50 ms only where neither had a
request in its own turn. When a worker ends, the backend that it was trying may be tried by others.

Told are states, so a message that comes twice or late does no harm. A sibling that joins is told every breaker that is not closed. Backends
that a worker does not have (a reload is under way) are ignored. An opening counts in the metrics of the worker that saw the failures.

    message = [[backend, adapter, tripped, seconds until half open, seconds opened for, probing, why], ...]
"""

from collections.abc import Callable
from typing import Final

import msgspec

from backends.breaker import BreakerNews
from domain.clock import Clock
from gateway.deps import Live
from gateway.fleet.health import show
from gateway.process.sibling_bus import Sibling, TopicNumber

MAX_BYTES_PER_S: Final = 256 * 1024
"""Bytes a second that a worker tells each sibling: some 1,500 states. What is beyond it is told later."""
APART_S: Final = 0.1
"""Between the moments at which the workers of a host may try a half-open backend: twice what news takes."""
WHY_TEXT: Final = 200
"""Characters of a reason that are told."""


class SharedBreakers:
    """Tells the states of this worker's breakers, and takes those of its siblings.

    Args:
        number: this worker's, from 0.
    """

    kind = TopicNumber.BREAKERS
    between_hosts = False
    max_bytes_per_s = MAX_BYTES_PER_S

    def __init__(self, live: Live, number: int, clock: Clock) -> None:
        self.tell_soon: Callable[[], None] = lambda: None
        """Asks the bus to call `batch` soon; set by the worker that has a bus."""
        self._live = live
        self._number = number
        self._clock = clock
        self._there: set[Sibling] = set()
        self._news: dict[tuple[str, str], None] = {}
        """Breakers whose states are to be told, oldest first: bounded by the breakers there are."""
        live.breakers.changed = self._changed

    def batch(self, max_bytes: int) -> bytes:
        """The next message, for `SiblingBus`."""
        now, breakers, told, size = self._clock(), self._live.breakers, [], 8
        for backend, served in list(self._news):
            news = breakers.news(backend, served, now)
            news = news._replace(why=news.why[:WHY_TEXT])
            size += len(msgspec.msgpack.encode(news))
            if size > max_bytes:
                self.tell_soon()
                break
            told.append(news)
            del self._news[backend, served]
        return msgspec.msgpack.encode(told) if told else b""

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a sibling's message. Raises ValueError when it is none."""
        try:
            told = msgspec.msgpack.decode(payload, type=list[BreakerNews])
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        now, pools = self._clock(), {backend.id: pool for pool in self._live.fleet.pools.values() for backend in pool.backends}
        later_s = APART_S * (1 + self._number)
        for news in told:
            if news.backend in pools and self._live.breakers.take(news, sibling, later_s, now):
                show(self._live, pools[news.backend].name, now)

    def joined(self, sibling: Sibling) -> None:
        """Tell it, and all others again, every breaker that is not closed."""
        self._there.add(sibling)
        self._news.update(dict.fromkeys(sorted(self._live.breakers.troubled)))
        if self._news:
            self.tell_soon()

    def left(self, sibling: Sibling) -> None:
        """Let others try what it was trying."""
        self._there.discard(sibling)
        self._live.breakers.forget_probes(sibling)

    def _changed(self, backend: str, served: str) -> None:
        if self._there:
            self._news[backend, served] = None
            self.tell_soon()
