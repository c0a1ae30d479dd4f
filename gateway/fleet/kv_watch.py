"""Keeps the picture of engines' KV caches current from the events that they publish: one subscription per backend that publishes.

Every worker subscribes for itself: an index that decides in microseconds has to lie in the process that decides.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from backends.kv.blocks import KvState
from backends.signals import START_JITTER_S
from domain.clock import Clock
from gateway.deps import Live
from gateway.placing.ground import Grounds

if TYPE_CHECKING:
    from backends.kv.stream import KvStream

log = structlog.get_logger("tidegate.kv")

TICK_S: Final = 0.5
"""How often the state of subscriptions is evaluated; event batches themselves are applied as they arrive."""


class Subscription(Protocol):
    """The subscription to one backend's events."""

    stream: "KvStream"
    trouble: str
    """Why nothing is received; empty while the subscription works."""

    def tick(self) -> None:
        """Keep the subscription going; called about once a second, the first call starts it."""
        ...

    def close(self) -> None:
        """Close its sockets."""
        ...


class KvWatch:
    """Puts the state of every subscription into `live.kv`.

    Args:
        subscriptions: by backend id; may be empty.
        count: called with a backend and its new batches and gaps.
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
        self._logged: dict[str, str] = {}
        """The reason that was logged last, by backend."""

    def add(self, backend: str, subscription: Subscription) -> None:
        """Follow the events of one more backend."""
        self._subscriptions[backend] = subscription

    def remove(self, backend: str) -> None:
        """Close the subscription of a backend and forget its state."""
        subscription = self._subscriptions.pop(backend, None)
        if subscription is not None:
            subscription.close()
        for by_backend in (self._live.kv, self._started, self._logged):
            by_backend.pop(backend, None)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """Evaluate every subscription once."""
        for backend, subscription in self._subscriptions.items():
            subscription.tick()
            self._note_restart(backend, subscription)
            state = subscription.stream.state()
            if subscription.trouble:
                state = msgspec.structs.replace(state, reason=subscription.trouble)
            before = self._live.kv.get(backend)
            self._live.kv[backend] = state
            batches, gaps = (before.counts.batches, before.counts.gaps) if before else (0, 0)
            self._count(backend, state.counts.batches - batches, state.counts.gaps - gaps)
            self._grounds.events(backend, connected=subscription.stream.up, stored=state.counts.stored, now=self._clock())
            self._log_change(backend, state)

    def _note_restart(self, backend: str, subscription: Subscription) -> None:
        """Empty the picture when the engine's process is a new one: its metrics say when the process began."""
        signals = self._live.signals.get(backend)
        began = signals.started_unix if signals is not None else None
        if began is not None and abs(began - self._started.setdefault(backend, began)) > START_JITTER_S:
            self._started[backend] = began
            subscription.stream.restarted(began)

    def _log_change(self, backend: str, state: KvState) -> None:
        if state.reason != self._logged.get(backend, "-"):
            self._logged[backend] = state.reason
            if state.trusted:
                log.info("kv events exact", backend=backend, blocks=state.blocks)
            else:
                log.warning("kv events not trusted", backend=backend, reason=state.reason)

    async def close(self) -> None:
        """Close every subscription."""
        for subscription in self._subscriptions.values():
            subscription.close()
