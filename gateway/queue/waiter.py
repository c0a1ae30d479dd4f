"""One request that waits in a queue, the state of a whole queue, and the forecast for a request. Values and callbacks only."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from domain.faults import Fault
from gateway.http.edge.exchange import Listener
from routing.fair_tier import QueuedRequest


class Reserved(Protocol):
    """The in-flight load of a request that is counted on its backends before it is sent."""

    def over(self) -> None:
        """Take the load off the backends; idempotent."""


class Dispatch(Protocol):
    """The routing result of a request that is dispatched."""

    @property
    def reserved(self) -> Reserved | None:
        """The load that is counted on its backends already; None before that."""


T = TypeVar("T", bound=Dispatch)


class QueueState(msgspec.Struct, frozen=True):
    """The state of one queue."""

    pool: str
    waiting: tuple[int, ...]
    """Requests by class."""
    tokens_per_s: float
    """The drain rate; 0 while unknown."""
    held: int = 0
    """Requests that wait for an engine of a pool that may have none and has none up; at least 1 for a minute after one asked."""


class WaitForecast(msgspec.Struct, frozen=True):
    """The forecast for a request that would come now."""

    waits: bool = False
    """Whether the request would have to wait."""
    wait_s: float = 0.0
    """The predicted wait in seconds; 0 while unknown."""
    refused: tuple[str, Fault] | None = None
    """Why the queue would refuse the request, with the word for metrics; None when the request may wait."""


def _nothing_lacks() -> bool:
    return False


class Waiter(Listener, Generic[T]):
    """One request in the queue.

    Args:
        place: its queue entry, which its order and deadline depend on.
        may_s: the seconds that it may wait.
        again: routes the request anew; None while there is no capacity for it. Raises Fault when there can never be capacity.
        reserve: counts the request on its backend, and returns the turn with that load.
        beat: sends a heartbeat to the caller when one is due; returns the time of the next one, infinite for never.
        lacking: the backends that would take the request if they had capacity, by id, each with the uncached tokens of its prompt there.
    """

    __slots__ = (
        "again",
        "ahead",
        "beat",
        "for_slot",
        "grain_s",
        "lacking",
        "lacks_slot",
        "look_at",
        "may_s",
        "on_gone",
        "outcome",
        "place",
        "predicted_s",
        "preempted_for",
        "reserve",
        "turn",
        "waits",
        "word",
    )

    def __init__(
        self,
        place: QueuedRequest,
        may_s: float,
        again: Callable[[], T | None],
        reserve: Callable[[T], T],
        beat: Callable[[float], float],
        loop: asyncio.AbstractEventLoop,
        lacking: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.place = place
        self.may_s = may_s
        self.again = again
        self.reserve = reserve
        self.beat = beat
        self.lacking = lacking
        self.outcome: asyncio.Future[T | Fault] = loop.create_future()
        self.turn: T | None = None
        self.look_at = 0.0
        self.ahead = 0
        """Tokens queued ahead of the request when it joined."""
        self.predicted_s = 0.0
        """The wait in seconds that was predicted when the request joined, without the margin."""
        self.grain_s = 0.0
        """The resolution of that prediction; 0 where nothing was known."""
        self.word = ""
        """How the wait ended, as a word for metrics."""
        self.lacks_slot: Callable[[], bool] = _nothing_lacks
        """Whether, when it was last routed, backends had capacity for the request and only lacked a slot for its adapter."""
        self.for_slot = False
        """`lacks_slot` as the queue has counted it."""
        self.waits = False
        """Whether the request is in a queue now."""
        self.preempted_for = False
        """Whether another request was preempted for it."""
        self.on_gone: Callable[[Waiter[T]], None] | None = None

    def gone(self) -> None:
        """Leave the queue at once: the caller has closed the connection."""
        if self.on_gone is not None:
            self.on_gone(self)
