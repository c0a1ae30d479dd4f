"""Keeps what engines hold in their KV caches current from the events they publish: one subscription per backend that has any.

Every worker listens for itself: an index that decides in microseconds has to lie in the process that decides.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from backends.kv_blocks import KvState
from backends.signals import START_JITTER_S
from domain.clock import Clock
from gateway.deps import Live
from gateway.placing.ground import Grounds

if TYPE_CHECKING:
    from backends.kv_stream import KvStream

log = structlog.get_logger("tidegate.kv")

TICK_S: Final = 0.5
"""How often what was heard is looked at; batches themselves are taken as they come."""


class Subscription(Protocol):
    """One backend's events."""

    stream: "KvStream"
    trouble: str

    def tick(self) -> None:
        """To be called about once a second, first to begin."""
        ...

    def close(self) -> None:
        """Close its sockets."""
        ...


class KvWatch:
    """Puts the state of every subscription into `live.kv`.

    Args:
        subscriptions: by backend id; none is fine.
        count: told of each backend's new batches and gaps.
    """

    def __init__(
        self,
        live: Live,
        subscriptions: Mapping[str, Subscription],
        count: Callable[[str, int, int], None],
        grounds: Grounds,
        clock: Clock,
    ) -> None:
        self._live = live
        self._grounds = grounds
        self._clock = clock
        self._subscriptions = dict(subscriptions)
        self._count = count
        self._started: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def add(self, backend: str, subscription: Subscription) -> None:
        """Listen to one more backend."""
        self._subscriptions[backend] = subscription

    def remove(self, backend: str) -> None:
        """Listen to it no more, and forget what it held."""
        subscription = self._subscriptions.pop(backend, None)
        if subscription is not None:
            subscription.close()
        for known in (self._live.kv, self._started, self._said):
            known.pop(backend, None)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """One look at every subscription."""
        for backend, subscription in self._subscriptions.items():
            subscription.tick()
            self._restarts(backend, subscription)
            state = subscription.stream.state()
            if subscription.trouble:
                state = msgspec.structs.replace(state, reason=subscription.trouble)
            before = self._live.kv.get(backend)
            self._live.kv[backend] = state
            batches, gaps = (before.counts.batches, before.counts.gaps) if before else (0, 0)
            self._count(backend, state.counts.batches - batches, state.counts.gaps - gaps)
            self._grounds.events(backend, connected=subscription.stream.up, stored=state.counts.stored, now=self._clock())
            self._say(backend, state)

    def _restarts(self, backend: str, subscription: Subscription) -> None:
        """The engine says when its process began: a new time means that its cache is empty."""
        signals = self._live.signals.get(backend)
        began = signals.started_unix if signals is not None else None
        if began is not None and abs(began - self._started.setdefault(backend, began)) > START_JITTER_S:
            self._started[backend] = began
            subscription.stream.restarted(began)

    def _say(self, backend: str, state: KvState) -> None:
        if state.reason != self._said.get(backend, "-"):
            self._said[backend] = state.reason
            if state.trusted:
                log.info("kv events exact", backend=backend, blocks=state.blocks)
            else:
                log.warning("kv events not trusted", backend=backend, reason=state.reason)

    async def close(self) -> None:
        """Close every subscription."""
        for subscription in self._subscriptions.values():
            subscription.close()
