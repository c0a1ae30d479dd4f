"""One realtime session on its way: joins the caller's WebSocket to the engine's, bounds both, and says how the session ended.

Everything here runs in socket callbacks and in the worker's sweep; the request's coroutine sleeps on `outcome` meanwhile. The caller's
handshake is answered only when the engine has taken the session: until then a failure is an HTTP reply, and another backend may be tried.

Bounds: a message has `max_message_bytes` each way. A side that reads too slowly stops the reading of the other one, and of its own; the
session ends when that lasts for `slow_reader_s`. A session without a message for `idle_s`, or older than `max_session_s`, ends. Both
sides are pinged, so that a peer that vanished is noticed within two intervals.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha1
from math import inf
from typing import Final

import msgspec

from backends.dialects.errors import fault_from_reply
from backends.ports import Loss, SessionFlight
from backends.websocket import FAILED, GOING_AWAY, NO_STATUS, NORMAL, POLICY, WebSocketStream, passed_on
from domain.ask import Endpoint
from domain.clock import Clock
from domain.faults import Fault, Kind, Source
from gateway.http.edge.attempt_faults import caller_gone, lost_reply, stopped_working
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.timeouts import AttemptTimeouts, RealtimeBounds, deadline_passed, no_first_token
from gateway.http.openai.realtime import RealtimeEvents, WrongEvent, error_event, subprotocol
from gateway.story import Story

ACCEPT_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Part of the answer to a handshake (RFC 6455, 1.3)."""
CALM: Final = frozenset({NORMAL, GOING_AWAY, NO_STATUS})
"""Codes of an engine that closes without a failure."""
OWN_CODES: Final = 3000
"""The first of the codes that applications choose themselves (RFC 6455, 7.4.2)."""
LOOK_S: Final = 0.5
"""Seconds between two looks of the sweep at one session."""
NO_ROUTE: Final = frozenset({403, 404, 405, 426})
"""Answers to the handshake of an engine whose model has no realtime sessions: vLLM mounts the route for speech models alone, and its
server answers 403 for a WebSocket that it does not have."""


class SessionSource(msgspec.Struct, frozen=True):
    """The engine of a session, as far as the relay has to know it."""

    backend: str
    """Id of the backend that was called."""
    served: tuple[str, ...]
    """Names that engines know the model by."""
    timeouts: AttemptTimeouts
    most_output: int | None = None
    """Output tokens that the session may use; None for no bound."""


class RealtimeSession(Listener):
    """A session: a `backends.ports.SessionSink`, watched by the worker's sweep.

    Args:
        head: makes further header lines of the answer to the caller's handshake.
    """

    __slots__ = (
        "_bounds",
        "_caller",
        "_caller_at",
        "_caller_full_at",
        "_clock",
        "_engine_at",
        "_engine_full_at",
        "_events",
        "_exchange",
        "_facts",
        "_head",
        "_message_at",
        "_opened_at",
        "_pinged_at",
        "_sent_events",
        "_source",
        "_started_at",
        "backend",
        "flight",
        "look_at",
        "outcome",
        "story",
    )

    def __init__(
        self,
        exchange: Exchange,
        story: Story,
        events: RealtimeEvents,
        source: SessionSource,
        *,
        bounds: RealtimeBounds,
        head: Callable[[], bytes],
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self.story = story
        self._facts = story.attempt
        self._events = events
        self._source = source
        self.backend = source.backend
        self._bounds = bounds
        self._head = head
        self._clock = clock
        self._caller = WebSocketStream.server(bounds.max_message_bytes)
        self.flight: SessionFlight | None = None
        self._started_at = self._message_at = self._caller_at = self._engine_at = self._pinged_at = clock()
        self._opened_at = inf
        self._caller_full_at = self._engine_full_at = inf
        self._sent_events = 0
        self.look_at = 0.0
        """When the sweep should look again."""
        self.outcome: asyncio.Future[Fault | None] = asyncio.get_running_loop().create_future()
        """None when one of the two sides closed in order; else the Fault that ended the session."""

    # --- from the engine ------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        """Answer the caller's handshake, and tell the engine which model is meant."""
        if self._exchange.gone:
            self.gone()
            return
        facts, now = self._facts, self._clock()
        self._opened_at = self._message_at = self._caller_at = self._engine_at = self._pinged_at = now
        facts.answer_at = facts.handed_on_at = now
        if facts.on_begun is not None:
            facts.on_begun()
        head = self._exchange.head
        accept = b64encode(sha1(head.headers[b"sec-websocket-key"] + ACCEPT_GUID, usedforsecurity=False).digest())
        agreed = subprotocol(head)
        lines = b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n" % accept
        if agreed:
            lines += b"sec-websocket-protocol: %b\r\n" % agreed.encode()
        self.story.settled.status = 101
        if not self._exchange.upgrade(lines + self._head(), self.from_caller):
            self._end(Fault(Kind.MALFORMED_HTTP, "Bytes came before the handshake was answered: wait for the 101."), POLICY)
            return
        assert self.flight is not None
        self.flight.send(self._events.opening())

    def on_refused(self, status: int, body: bytes, retry_after: str | None) -> None:
        """End the attempt: the engine does not take the session."""
        self.flight = None
        if status in NO_ROUTE:
            message = "This model has no realtime sessions: use one that transcribes speech as it comes."
            fault = Fault(Kind.UNSUPPORTED_PARAMETER, message, param="model", detail=f"engine answered the handshake with {status}")
        else:
            later = None if retry_after is None else retry_after.encode("latin-1", "ignore")
            fault = fault_from_reply(status, body, endpoint=Endpoint.REALTIME, retry_after=later, served=self._source.served)
        self._resolve(fault)

    def on_bytes(self) -> None:
        self._engine_at = self._clock()

    def on_message(self, message: bytes) -> None:
        """Pass an event of the engine on."""
        facts, events = self._facts, self._events
        self._message_at = facts.last_event_at = self._clock()
        facts.events += 1
        turns = events.turns
        try:
            event = events.from_engine(message, self._event_id)
        except Fault as fault:
            self._end(fault, FAILED)
            return
        if event:
            self._tell(event)
        if events.turns != turns:
            facts.usage = events.usage  # known to the ledger even if this process dies now
        self._check_spent()

    def on_closed(self, code: int) -> None:
        """The engine closed the session; so does the gateway, with the same code. A turn that is cut off, and a code that tells of a
        failure, count as the engine's failure."""
        self.flight = None
        if self._events.turn or not (code in CALM or code >= OWN_CODES):
            self._end(lost_reply(Loss.CUT, f"closed the session with {code}", stream=True), FAILED)
        else:
            self._end(None, passed_on(code))

    def on_loss(self, loss: Loss, detail: str) -> None:
        self.flight = None
        self._end(lost_reply(loss, detail, stream=self._exchange.started), FAILED)

    def on_full(self) -> None:
        """The engine reads too slowly: read no more from the caller."""
        self._engine_full_at = self._clock()
        self._exchange.hold()

    def on_drained(self) -> None:
        self._engine_full_at = inf
        if self._caller_full_at == inf:
            self._exchange.go_on()

    # --- from the caller's connection -----------------------------------------------------------------------------

    def from_caller(self, data: bytes) -> None:
        """Take bytes of the caller's side."""
        if self.outcome.done():
            return
        self._caller_at = self._clock()
        caller, flight = self._caller, self.flight
        for message in caller.feed(data):
            self._message_at = self._caller_at
            try:
                event = self._events.from_caller(message)
            except WrongEvent as wrong:
                self._tell(error_event(wrong.fault, self._event_id(), wrong.event_id))
                continue
            if flight is not None:
                flight.send(event)
            if self._check_spent():
                return
        if caller.closed is None:
            self._flush()
            return
        code, _ = caller.closed
        self._finish(caller_gone() if self._events.turn else None, passed_on(code))

    def gone(self) -> None:
        """The caller left without closing."""
        self._finish(caller_gone(), GOING_AWAY)

    def full(self) -> None:
        """The caller reads too slowly: read no more from the engine, nor from the caller, whose pings would be answered into memory."""
        self._caller_full_at = self._clock()
        self._exchange.hold()
        if self.flight is not None:
            self.flight.pause()

    def drained(self) -> None:
        self._caller_full_at = inf
        if self._engine_full_at == inf:
            self._exchange.go_on()
        if self.flight is not None:
            self.flight.resume()

    def cut(self) -> None:
        """The caller has read too slowly for too long, or too many do."""
        self._exchange.abandon()
        self._finish(Fault(Kind.SLOW_READER, "The session was not read fast enough."), POLICY)

    # --- from the gateway -----------------------------------------------------------------------------------------

    def end_with(self, fault: Fault) -> None:
        """End the session for a reason of the gateway's own."""
        self._end(fault, GOING_AWAY if fault.source is not Source.CALLER else POLICY)

    def abandon_unanswered(self, now: float, *, at_once: bool) -> None:
        """Give up a handshake of a backend that was taken out of rotation."""
        if self._opened_at == inf and (at_once or now - self._started_at > self._source.timeouts.first_token_s):
            self._resolve(stopped_working(f"{now - self._started_at:.1f} s without an answer to the handshake"))

    @property
    def last_event_at(self) -> float | None:
        """When the engine last sent an event; None before the first."""
        return self._facts.last_event_at

    @property
    def over(self) -> bool:
        """Whether the session has ended."""
        return self.outcome.done()

    def check(self, now: float) -> None:
        """Enforce the bounds; called by the worker's sweep when `look_at` has passed."""
        self.look_at = now + LOOK_S
        if self.outcome.done():
            return
        bounds = self._bounds
        if self._opened_at == inf:
            limit_s = self._source.timeouts.first_token_s
            if now > self.story.asked.end_at:
                self._resolve(deadline_passed(self.story))
            elif now > self._started_at + limit_s:
                self._resolve(no_first_token(limit_s))
        elif now > self._caller_full_at + bounds.slow_reader_s:
            self.cut()
        elif now > self._engine_full_at + bounds.slow_reader_s:
            self._end(Fault(Kind.TOKEN_GAP_TIMEOUT, "The engine stopped reading the session.", detail="it reads too slowly"), FAILED)
        elif now > self._opened_at + bounds.max_session_s:
            self._expire(f"A session may last {bounds.max_session_s:g} s. Open another one.")
        elif now > self._message_at + bounds.idle_s:
            self._expire(f"A session without an event ends after {bounds.idle_s:g} s. Open another one.")
        elif self._exchange.draining and not self._events.turn:
            self._end(Fault(Kind.SHUTTING_DOWN, "This gateway restarts. Open another session."), GOING_AWAY)
        elif now > self._pinged_at + bounds.ping_s:
            self._ping(now)

    def _ping(self, now: float) -> None:
        """Ping both sides, or end the session of a side that has not answered the ping before."""
        pinged, caller_full, engine_full = self._pinged_at > self._opened_at, self._caller_full_at < inf, self._engine_full_at < inf
        if pinged and self._caller_at < self._pinged_at and not (caller_full or engine_full):
            self._exchange.abandon()
            self.gone()
        elif pinged and self._engine_at < self._pinged_at and not caller_full:
            self._end(stopped_working("it answered no ping"), FAILED)
        else:
            self._pinged_at = now
            self._caller.ping()
            self._flush()
            if self.flight is not None:
                self.flight.ping()

    def _expire(self, message: str) -> None:
        self._end(Fault(Kind.REQUEST_TIMEOUT, message, code="session_expired"), GOING_AWAY)

    def _check_spent(self) -> bool:
        """End a session that has used what it reserved; whether it did."""
        fault = None if self.outcome.done() else self._events.spent(self._source.most_output)
        if fault is not None:
            self._end(fault, POLICY)
        return fault is not None

    # --- towards the caller ---------------------------------------------------------------------------------------

    def _event_id(self) -> str:
        self._sent_events += 1
        return f"event_{self.story.own_id.removeprefix('req-')}-{self._sent_events}"

    def _tell(self, event: bytes) -> None:
        self._caller.send(event)
        self._flush()

    def _flush(self) -> None:
        if not self.outcome.done() and (data := self._caller.out()):
            self._exchange.send(data)

    def _end(self, fault: Fault | None, code: int) -> None:
        """Tell the caller how the session ended, and close both sides. Before the handshake was answered, the reply is HTTP."""
        if self.outcome.done():
            return
        if self._exchange.started and not self._exchange.finished:
            if fault is not None:
                self._tell(error_event(fault, self._event_id()))
            self._caller.close(code, "" if fault is None else fault.message)
        self._finish(fault, code)

    def _finish(self, fault: Fault | None, code: int) -> None:
        if self.outcome.done():
            return
        exchange = self._exchange
        if exchange.started and not exchange.finished and not exchange.gone:
            self._flush()
            exchange.hang_up()
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.close(code if code in (NORMAL, GOING_AWAY) else GOING_AWAY)
        self._resolve(fault)

    def _resolve(self, fault: Fault | None) -> None:
        if self.outcome.done():
            return
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.abort()
        if self._opened_at < inf:
            self._facts.usage = self._events.usage
        self.outcome.set_result(fault)
        self.look_at = 0.0
