"""Flights: equal requests of one worker that are under way at once share one engine call (single-flight).

The first request of a key leads: it waits, is placed and forwarded like any other, but writes to a `SharedFlight` instead of its own
exchange. Later requests of the key join, get what has passed so far, and stream along. A leader whose caller leaves goes on for the
others; when nobody is left, the engine is told to stop. The leader pays for the answer; whoever joined pays what a hit costs.

A request that asks for the answer in another form (streamed or plain, with or without the usage event) waits for the end, and is then
answered from the kept document.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import NOBODY, Exchange, Listener
from gateway.http.edge.timeouts import deadline_passed
from gateway.story import Story

MAX_PENDING_BYTES: Final = 256 * 1024
"""Bytes kept for one slow reader of a flight; a reader that falls further behind is cut, and holds nobody else up."""


class AskAgain(Exception):
    """The flight is over and has no answer for this request, which looks the answer up once more."""


class Receiver(Listener):
    """A caller's connection, to which an answer is sent piece by piece: from a flight, or from the cache at a pace. The worker's sweep
    watches it.

    Args:
        form: how the caller wants the answer; only receivers of the leader's form stream along.
        headers: makes the reply's header lines when the reply begins.
        slow_reader_s: how long a reader may take nothing.
    """

    __slots__ = (
        "_clock",
        "_flight",
        "_full_at",
        "_pending",
        "_slow_reader_s",
        "exchange",
        "form",
        "headers",
        "look_at",
        "outcome",
        "story",
    )

    backend = ""
    last_event_at = None

    def __init__(
        self,
        exchange: Exchange,
        story: Story,
        form: tuple[bool, bool],
        headers: Callable[[], bytes],
        *,
        slow_reader_s: float,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.exchange = exchange
        self.story = story
        self.form = form
        self.headers = headers
        self.look_at = 0.0
        self.outcome: asyncio.Future[None] = loop.create_future()
        """Set when the whole answer was written; otherwise a Fault, or AskAgain."""
        self._slow_reader_s = slow_reader_s
        self._clock = clock
        self._flight: SharedFlight | None = None
        self._pending = bytearray()
        self._full_at: float | None = None

    def listen(self) -> None:
        """Hear of the caller's connection from now on."""
        self.exchange.listener = self

    def follow(self, flight: "SharedFlight") -> None:
        """Join a flight as a follower."""
        self._flight = flight
        self.listen()
        flight.add(self)

    # --- from the flight ------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a piece of the answer, or keep it while the caller reads too slowly."""
        if self.over:
            return
        if self._full_at is not None:
            self._pending += data
            if len(self._pending) > MAX_PENDING_BYTES:
                self.cut()
            return
        if not self.exchange.started:
            self.exchange.start(self.headers())
        self._hand_on(data)

    def comment(self, data: bytes) -> None:
        """Send a comment between two events."""
        if self.over or self._full_at is not None or not self.exchange.started:
            self.write(data)
        else:
            self.exchange.comment(data)

    def _hand_on(self, data: bytes) -> None:
        try:
            self.exchange.write(data)
        except Fault as fault:  # it is no answer in this caller's API
            self.fail(fault)

    def reply(self, body: bytes) -> None:
        """Send the whole answer of a plain request."""
        if self.over:
            return
        try:
            self.exchange.reply(200, self.headers(), body)
        except Fault as fault:
            self.fail(fault)
        else:
            self.outcome.set_result(None)

    def end(self) -> None:
        """The answer is whole."""
        if self.over:
            return
        if self._pending:
            self._hand_on(bytes(self._pending))
            self._pending.clear()
            if self.over:
                return
        if not self.exchange.started:
            self.exchange.start(self.headers())
        self.exchange.end()
        self.outcome.set_result(None)

    def fail(self, error: Exception) -> None:
        """The answer will not become whole."""
        if not self.over:
            self.outcome.set_exception(error)

    # --- from the caller's connection -----------------------------------------------------------------------------

    def gone(self) -> None:
        self._leave(caller_gone())

    def full(self) -> None:
        self._full_at = self._clock()
        self.look_at = 0.0

    def drained(self) -> None:
        self._full_at = None
        if self._pending and not self.over:
            data = bytes(self._pending)
            self._pending.clear()
            self._hand_on(data)

    def cut(self) -> None:
        self.exchange.abandon()
        self._leave(Fault(Kind.SLOW_READER, "The answer was not read fast enough."))

    def end_with(self, fault: Fault) -> None:
        """End the request for a reason of the gateway's own."""
        self._leave(fault)

    def abandon_unanswered(self, now: float, *, at_once: bool) -> None:
        """Nothing: the leader's attempt hears of its backend itself."""

    def _leave(self, fault: Fault) -> None:
        self.fail(fault)
        if self._flight is not None:
            self._flight.left(self)

    # --- from the clock -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Enforce the request's own deadline, and cut a reader that takes nothing."""
        end_at = self.story.asked.end_at
        if self.over:
            return
        if now > end_at:
            self._leave(deadline_passed(self.story))
            return
        self.look_at = end_at
        if self._full_at is not None:
            self.look_at = min(end_at, self._full_at + self._slow_reader_s)
            if now > self._full_at + self._slow_reader_s:
                self.cut()

    @property
    def over(self) -> bool:
        """Whether the sweep may forget this follower."""
        return self.outcome.done()


class SharedFlight(Exchange, kw_only=True):
    """The exchange of a leading request: it writes to the leader's own exchange and to those of all who joined.

    It takes the place of the leader's exchange from the wait for an engine on. While nobody has joined, the leader's connection is heard as
    always: a caller that leaves stops the engine, and one that reads slowly pauses it.
    """

    leader: Exchange
    form: tuple[bool, bool]
    """Whether the leader wants a stream, and whether with the usage event."""
    followers: list[Receiver] = msgspec.field(default_factory=list)
    max_bytes: int = 0
    """The longest reply that is recorded."""
    parts: list[bytes] = msgspec.field(default_factory=list)
    """What has passed so far; nothing of a reply that is too long."""
    whole: bool = False
    """Whether the reply has passed whole."""
    leader_gone: bool = False
    leader_full: bool = False
    pending: bytearray = msgspec.field(default_factory=bytearray)
    """Bytes for a leader that reads slowly while others stream along."""

    @property
    def too_long(self) -> bool:
        """Whether more has passed than is recorded."""
        return self.written > self.max_bytes

    def recorded(self) -> bytes:
        """What has passed so far; empty for a reply that is too long."""
        if len(self.parts) > 1:
            self.parts[:] = [b"".join(self.parts)]
        return self.parts[0] if self.parts else b""

    # --- joining and leaving --------------------------------------------------------------------------------------

    def add(self, follower: Receiver) -> None:
        """Let a request join; it gets at once what has passed."""
        if not self.followers and self.leader_full:
            self.listener.drained()  # one slow reader holds nobody else up
        self.followers.append(follower)
        if self.started and follower.form == self.form:
            follower.write(self.recorded())

    @property
    def joinable(self) -> bool:
        """Whether what has passed so far is still known."""
        return not self.finished and not self.too_long

    def left(self, follower: Receiver) -> None:
        """A follower has left. When nobody is left, the engine stops."""
        self.followers = [other for other in self.followers if other is not follower]
        if self.leader_gone and not self.followers and not self.finished:
            self.gone = True
            self.listener.gone()

    def over(self, error: Exception | None) -> None:
        """The leading request has ended: with the whole answer, or with a Fault. What nobody has answered looks for itself."""
        self.finished = True
        for follower in self.followers:
            if follower.over:
                continue
            if error is not None and (follower.exchange.started or (isinstance(error, Fault) and not _may_be_led_again(error))):
                follower.fail(_copy(error))
            else:
                follower.fail(AskAgain())
        self.followers = []

    @property
    def live(self) -> list[Receiver]:
        """The followers that stream along."""
        return [follower for follower in self.followers if follower.form == self.form and not follower.over]

    # --- from the relay: the reply --------------------------------------------------------------------------------

    def start(self, headers: bytes) -> None:
        self.started = True
        if not self.leader_gone:
            self.leader.start(headers)

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self.written <= self.max_bytes:
            self.parts.append(data)
        elif self.parts:
            self.parts.clear()
        if self.leader_gone:
            pass
        elif self.leader_full and self.followers:
            self.pending += data
            if len(self.pending) > MAX_PENDING_BYTES:
                self._drop_leader()
        else:
            self.leader.write(data)
        if self.followers:
            for follower in self.live:
                follower.write(data)

    def comment(self, data: bytes) -> None:
        self.commented = True
        if self.leader_gone or not self.started or (self.leader_full and self.followers):
            self.write(data)
            return
        self.written += len(data)
        if self.parts or self.written <= self.max_bytes:
            self.parts.append(data)
        self.leader.comment(data)
        for follower in self.live:
            follower.comment(data)

    def end(self) -> None:
        if not self.leader_gone:
            if self.pending:
                self.leader.write(bytes(self.pending))
                self.pending.clear()
            self.leader.end()
        for follower in self.live:
            follower.end()
        self.whole = True
        self._finished()

    def reply(self, status: int, headers: bytes, body: bytes) -> None:
        self.started = True
        self.written = len(body)
        if self.written <= self.max_bytes:
            self.parts.append(body)
        if not self.leader_gone:
            self.leader.reply(status, headers, body)
        for follower in self.live:
            follower.reply(body)
        self.whole = True
        self._finished()

    def cut(self) -> None:
        self._finished()
        if not self.leader_gone:
            self.leader.cut()

    def abandon(self) -> None:
        self._finished()
        if not self.leader_gone:
            self.leader.abandon()

    def _finished(self) -> None:
        self.finished = True
        self.listener = NOBODY  # the relay, which has this exchange: a cycle would be left to the collector of garbage

    def _drop_leader(self) -> None:
        self.leader.abandon()
        self.leader_gone = True
        self.pending.clear()


class LeaderHears(Listener):
    """Hears of the leader's connection, and tells the flight."""

    __slots__ = ("_flight",)

    def __init__(self, flight: SharedFlight) -> None:
        self._flight = flight

    def gone(self) -> None:
        flight = self._flight
        flight.leader_gone = True
        flight.pending.clear()
        if not flight.followers:
            flight.gone = True
            flight.listener.gone()

    def full(self) -> None:
        flight = self._flight
        flight.leader_full = True
        if not flight.followers:
            flight.listener.full()

    def drained(self) -> None:
        flight = self._flight
        flight.leader_full = False
        if flight.pending:
            data = bytes(flight.pending)
            flight.pending.clear()
            flight.leader.write(data)
        if not flight.followers:
            flight.listener.drained()

    def cut(self) -> None:
        self._flight.listener.cut()


def begun_by(exchange: Exchange, form: tuple[bool, bool], max_bytes: int) -> SharedFlight:
    """The flight that a request leads from now on."""
    flight = SharedFlight(
        exchange._connection, exchange.head, exchange.client, complete=True, leader=exchange, form=form, max_bytes=max_bytes
    )
    exchange.listener = LeaderHears(flight)
    return flight


_ENDS_ALL: Final = frozenset({Kind.CRASHES_ENGINES})


def _may_be_led_again(fault: Fault) -> bool:
    """Whether the try of another request may end better: the leader's own caller, key or time ended it, or an engine did."""
    return fault.kind not in _ENDS_ALL


def _copy(error: Exception) -> Exception:
    return msgspec.structs.replace(error) if isinstance(error, msgspec.Struct) else error
