"""One request that waits, and what is told of a whole line. Values and callbacks only."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from domain.faults import Fault
from gateway.http.edge.exchange import Listener
from tenancy.fair_row import Waiting


class Staked(Protocol):
    """What a request has on backends before it is sent."""

    def over(self) -> None:
        """Take it back; idempotent."""


class Turn(Protocol):
    """Where a request goes."""

    @property
    def staked(self) -> Staked | None:
        """What it has there already."""


T = TypeVar("T", bound=Turn)


class LineState(msgspec.Struct, frozen=True):
    """One line, for those who ask."""

    pool: str
    waiting: tuple[int, ...]
    """By class."""
    tokens_per_s: float
    """How fast it is worked off; 0 while that is not known."""


class Outlook(msgspec.Struct, frozen=True):
    """What a request would meet that came now."""

    waits: bool = False
    """Whether it would have to wait."""
    wait_s: float = 0.0
    """How long, as far as anybody knows."""
    refused: tuple[str, Fault] | None = None
    """Why it would not even be let wait, with the word for it."""


class Waiter(Listener, Generic[T]):
    """One request in the line.

    Args:
        place: what its turn depends on.
        may_s: how long it may wait.
        again: decides where it would go now; None while there is no room for it. Raises Fault when there can never be.
        stake: takes its place there, and says so.
        beat: tells its caller that it still waits; returns when to do so again, infinite for never.
        lacking: the backends that would take it if they had room, by id, each with the tokens that it would have to compute there.
    """

    __slots__ = (
        "again", "ahead", "beat", "given_way_to", "grain_s", "lacking", "look_at", "may_s", "on_gone", "outcome", "place", "stake",
        "told_s", "turn", "waits", "word",
    )  # fmt: skip

    def __init__(
        self,
        place: Waiting,
        may_s: float,
        again: Callable[[], T | None],
        stake: Callable[[T], T],
        beat: Callable[[float], float],
        loop: asyncio.AbstractEventLoop,
        lacking: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.place = place
        self.may_s = may_s
        self.again = again
        self.stake = stake
        self.beat = beat
        self.lacking = lacking
        self.outcome: asyncio.Future[T | Fault] = loop.create_future()
        self.turn: T | None = None
        self.look_at = 0.0
        self.ahead = 0
        """Tokens that were to be served before it when it came."""
        self.told_s = 0.0
        """What its wait was predicted to be then, without any caution."""
        self.grain_s = 0.0
        """How exact that was at best; 0 where nothing was known."""
        self.word = ""
        """How its wait ended."""
        self.waits = False
        """Whether it is in a line now."""
        self.given_way_to = False
        """Whether another one gave its place on a backend for it."""
        self.on_gone: Callable[[Waiter[T]], None] | None = None

    def gone(self) -> None:
        """The caller left: its place in the line is free at once."""
        if self.on_gone is not None:
            self.on_gone(self)
