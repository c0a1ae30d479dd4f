"""One attempt: joins an engine's reply to the caller's exchange through the reply chain, and says how it went.

Everything here runs in socket callbacks; the request's coroutine sleeps on `outcome` meanwhile. The relay commits the
exchange (sends a head) only when the first good bytes are there, or when a heartbeat is due; until then the lifecycle may
try another backend.

An answer that no engine gives, as one from a cache would be, is relayed alike with `FROM_MEMORY` as its source.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Final

import msgspec

from backends.dialects.errors import BUSY_STATUSES, CallerMistake, fault_from_reply
from backends.ports import Flight, Loss
from domain.ask import Endpoint
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.http.edge.attempt_faults import caller_gone, lost_reply, stopped_working, unusable_reply
from gateway.http.edge.exchange import AFTER_COMMENT, Exchange, Listener
from gateway.http.edge.reply_chain import ReplyChain, Tap
from gateway.http.edge.taps import HEARTBEAT
from gateway.http.edge.timeouts import NO_TIMEOUT, AttemptTimeouts, Timeouts, deadline_of, deadline_passed
from gateway.story import Story

MAX_ERROR_BODY_BYTES: Final = 64 * 1024
"""Engine error bodies are under 1 KiB; what is longer is cut, not trusted."""


class ReplySource(msgspec.Struct, frozen=True, gc=False):
    """Where a reply comes from, as far as its relay has to know. The defaults are an answer from memory: no backend, no deadline."""

    backend: str = ""
    """Id of the backend that was called."""
    endpoint: Endpoint = Endpoint.CHAT
    served: tuple[str, ...] = ()
    """Names that engines know the model by; no error message may repeat them."""
    timeouts: AttemptTimeouts = NO_TIMEOUT
    mistakes: tuple[CallerMistake, ...] = ()
    """Callers' mistakes that its engine answers with 5xx (`Dialect.mistakes`)."""
    others: Callable[[], Collection[str]] = tuple
    """Collects further names of the deployment that no error message may tell."""
    prompt_field: str = ""
    """The field with the prompt, where it may be another than the endpoint's first."""
    takes: frozenset[bytes] = frozenset()
    """Types of plain replies that are answers, beside JSON."""


FROM_MEMORY: Final = ReplySource()


class Heartbeat(msgspec.Struct, eq=False):
    """Keeps a stream's connection alive while nothing else is sent: an SSE comment every so often."""

    exchange: Exchange
    headers: Callable[[], bytes]
    """Makes the reply's header lines when the first heartbeat has to begin the reply."""
    every_s: float
    """The time between two heartbeats; 0 for none at all."""
    sent_at: float
    """When the last heartbeat was sent; in the beginning the time from which the first interval counts."""

    def beat(self, now: float, written_at: float = 0.0) -> float:
        """Send a heartbeat if one is due; returns the time of the next.

        Args:
            written_at: when something else was written last.
        """
        every_s = self.every_s or inf
        due_at = max(self.sent_at, written_at) + every_s
        if now < due_at:
            return due_at
        if not self.exchange.started:
            self.exchange.start(self.headers())
        self.exchange.write(HEARTBEAT)
        self.exchange.commented = True
        self.sent_at = now
        return now + every_s


class ReplyRelay(Listener):
    """One reply on its way to the caller: a `backends.ports.ReplySink`, watched by the worker's sweep.

    Args:
        chain: the reply chain; one tap alone is a chain as well.
        headers: makes the reply's header lines when the exchange is committed; they carry timings, so not sooner.
    """

    __slots__ = (
        "_answer",
        "_chain",
        "_clock",
        "_direct",
        "_error_body",
        "_exchange",
        "_guarded",
        "_headers",
        "_heartbeat",
        "_paused_at",
        "_paused_s",
        "_resumed_at",
        "_retry_after",
        "_source",
        "_started_at",
        "_status",
        "_timeouts",
        "backend",
        "flight",
        "look_at",
        "mode",
        "outcome",
        "story",
    )

    def __init__(
        self,
        exchange: Exchange,
        story: Story,
        chain: Tap,
        source: ReplySource,
        *,
        headers: Callable[[], bytes],
        timeouts: Timeouts,
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self.story = story
        self._answer = story.attempt
        self._chain = chain
        self._guarded = chain if isinstance(chain, ReplyChain) else None
        if self._guarded is not None:
            self._guarded.listen(self.on_more)
        self._source = source
        self.backend = source.backend
        self._headers = headers
        self._timeouts = timeouts
        self._clock = clock
        self._started_at = clock()
        self._heartbeat = Heartbeat(exchange, headers, timeouts.heartbeat_s, self._started_at) if story.asked.stream else None
        self._status = 0
        self._retry_after: bytes | None = None
        self._error_body = b""
        self.mode = ""
        """What is coming: an `answer` or an `error`; empty until its head is there."""
        self._direct = False
        """Whether the reply has begun and no heartbeat was sent since, so that bytes need no more than to be written."""
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._resumed_at = self._started_at if self._answer.events else 0.0  # another engine's answer, with which this one goes on
        self.flight: Flight | None = None
        self.look_at = 0.0
        """When the sweep should check again; events only ever make it later, so they need not touch it."""
        self.outcome: asyncio.Future[Fault | None] = asyncio.get_running_loop().create_future()
        """None when the whole answer was handed on; the Fault that ended the attempt otherwise."""

    # --- from the engine ------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status = status
        if status != 200:
            self.mode = "error"
            self._retry_after = headers.get(b"retry-after")
            return
        content_type = headers.get(b"content-type", b"")
        expected = b"text/event-stream" if self.story.asked.stream else b"application/json"
        if content_type == expected or content_type.partition(b";")[0].strip().lower() == expected:
            self.mode = "answer"
        elif (kind := content_type.partition(b";")[0].strip().lower()) in self._source.takes and not self.story.asked.stream:
            self.mode = "answer"
            self._answer.content_type = kind
        else:
            self._give_up(unusable_reply(f"content-type {content_type[:64]!r}"))

    def on_data(self, data: bytes) -> None:
        if self.mode == "error":
            if len(self._error_body) < MAX_ERROR_BODY_BYTES:
                self._error_body += data[:MAX_ERROR_BODY_BYTES]
            return
        chain = self._chain
        out = chain.feed(data)
        if out:
            if self._direct:
                try:
                    self._exchange.write(out)
                except Fault as fault:  # it is no answer in the caller's API
                    self._give_up(fault)
            else:
                self._hand_on(out)
        if chain.over and not self.outcome.done():
            self._answer_over()

    def _answer_over(self) -> None:
        """The answer is over, although the engine's reply is not."""
        chain = self._chain
        if chain.fault is not None:
            self._give_up(chain.fault)
        else:
            # `[DONE]` is the end for the caller; the engine's last chunk may still be on its way
            if self._answer.cut is not None:
                self._abort()  # guard rules ended the answer, and the engine goes on with it
            self._complete()

    def on_end(self) -> None:
        self.flight = None
        if self.outcome.done():
            return
        if self.mode == "error":
            self._refused()
            return
        self._answer.answer_at = self._answer.answer_at or self._clock()
        self._ended(self._chain.end())

    def on_more(self) -> None:
        """Guard rules let more of the answer go on, between two reads of the engine or after its reply has ended."""
        if self.outcome.done() or self._guarded is None:
            return
        waited = self._guarded.pending
        out = self._guarded.more()
        if waited and self.flight is None:
            self._ended(out)
            return
        if out:
            self._hand_on(out)
        if self._guarded.over and not self.outcome.done():
            self._answer_over()

    def _ended(self, out: bytes) -> None:
        """The engine's reply has ended; the answer has too, unless guard rules still hold a part of it."""
        chain = self._chain
        if self._waits:
            if out:
                self._hand_on(out)
            self.look_at = 0.0
            return
        if not self.story.asked.stream and not self._exchange.started:
            if chain.fault is None:
                self._answer.handed_on_at = self._clock()
                try:
                    self._exchange.reply(200, self._headers(), out)
                except Fault as fault:
                    self._resolve(fault)
                    return
            self._resolve(chain.fault)
            return
        if out:
            self._hand_on(out)
        if self.outcome.done():
            return
        if chain.fault is not None:
            self._resolve(chain.fault)
        else:
            self._complete()

    def on_loss(self, loss: Loss, detail: str) -> None:
        self.flight = None
        if self.outcome.done():
            return
        if self._waits:
            return  # the answer is whole
        if self.mode == "error" and self._status in BUSY_STATUSES:
            self._refused()  # the status says it all; that its text was cut says nothing more
            return
        self._resolve(lost_reply(loss, detail, stream=self.story.asked.stream))

    def _refused(self) -> None:
        source = self._source
        fault = fault_from_reply(
            self._status,
            self._error_body,
            endpoint=source.endpoint,
            retry_after=self._retry_after,
            served=source.served,
            mistakes=source.mistakes,
            others=source.others(),
            prompt_field=source.prompt_field,
        )
        self._resolve(fault)

    # --- towards the caller ---------------------------------------------------------------------------------------

    def _hand_on(self, data: bytes) -> None:
        exchange = self._exchange
        if not exchange.started:
            self._answer.answer_at = self._answer.first_event_at or self._clock()
            self._answer.handed_on_at = self._clock()
            exchange.start(self._headers())
        self._direct = True
        if exchange.commented:
            exchange.commented = False
            data = AFTER_COMMENT + data
        try:
            exchange.write(data)
        except Fault as fault:
            self._give_up(fault)

    def _complete(self) -> None:
        if not self._exchange.started:
            self._exchange.start(self._headers())
        self._exchange.end()
        self._resolve(None)

    def _give_up(self, fault: Fault) -> None:
        self._abort()
        self._resolve(fault)

    def _abort(self) -> None:
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.abort()

    def _resolve(self, fault: Fault | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(fault)
            self.look_at = 0.0

    # --- from the caller's connection -----------------------------------------------------------------------------

    def gone(self) -> None:
        """The caller left: the engine must stop at once."""
        self._give_up(caller_gone())

    def full(self) -> None:
        """The caller reads too slowly: stop reading from the engine, so that memory stays bounded."""
        self._paused_at = self._clock()
        self.look_at = 0.0
        if self.flight is not None:
            self.flight.pause()

    def drained(self) -> None:
        """The caller reads again, so the engine is read again; the pause does not count as the engine's silence."""
        now = self._clock()
        if self._paused_at is not None:
            self._paused_s += now - self._paused_at
        self._paused_at = None
        self._resumed_at = now
        self.look_at = 0.0
        if self.flight is not None:
            self.flight.resume()

    def cut(self) -> None:
        """The caller has been too slow for too long, or too many are."""
        self._exchange.abandon()
        self._give_up(Fault(Kind.SLOW_READER, "The answer was not read fast enough."))

    def end_with(self, fault: Fault) -> None:
        """End the attempt for a reason of the gateway's own."""
        self._give_up(fault)

    def abandon_unanswered(self, now: float, *, at_once: bool) -> None:
        """Give up an answer that has not begun, of a backend that was taken out of rotation: once a first token is overdue, or
        `at_once` when the backend was found hanging."""
        waited_s = now - self._started_at
        if self.last_event_at is None and (at_once or waited_s > self._source.timeouts.first_token_s):
            self._give_up(stopped_working(f"{waited_s:.1f} s without an answer"))

    @property
    def last_event_at(self) -> float | None:
        """When the last event of this attempt's answer came; None before the first."""
        return self._answer.last_event_at

    # --- from the clock -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Enforce deadlines and send the heartbeat; called by the worker's sweep when `look_at` has passed."""
        if self.outcome.done():
            self._drop_tail(now)
            return
        timeouts, end_at = self._timeouts, self.story.asked.end_at
        if now > end_at:
            self._give_up(deadline_passed(self.story))
            return
        if self._paused_at is not None:
            self.look_at = min(self._paused_at + timeouts.slow_reader_s, end_at)
            if now > self.look_at:
                self.cut()
            return
        if self._waits:
            self.look_at = end_at  # the engine is done; detectors have times of their own
            if self._heartbeat is not None:
                self.look_at = min(end_at, self._beat(self._heartbeat, now))
            return
        late_at, too_late = deadline_of(
            timeouts,
            self._source.timeouts,
            self._answer,
            started_at=self._started_at,
            resumed_at=self._resumed_at,
            paused_s=self._paused_s,
        )
        if now > late_at:
            self._give_up(too_late)
            return
        self.look_at = late_at = min(late_at, end_at)
        if self._heartbeat is not None:
            self.look_at = min(late_at, self._beat(self._heartbeat, now))

    def _beat(self, heartbeat: Heartbeat, now: float) -> float:
        """When to send the next heartbeat, after one that is due now."""
        next_at = heartbeat.beat(now, self._written_at)
        self._direct = self._direct and not self._exchange.commented
        return next_at

    @property
    def _waits(self) -> bool:
        """Whether the engine's reply is whole and guard rules still hold a part of it."""
        return self._guarded is not None and self._guarded.pending

    @property
    def _written_at(self) -> float:
        """When something was written last, about; nothing is as long as guard rules hold the answer."""
        return 0.0 if self._answer.held else max(self.last_event_at or 0.0, self._resumed_at)

    def _drop_tail(self, now: float) -> None:
        """An engine that sent `[DONE]` but not the end of its message loses the connection after a while."""
        if self.flight is not None and now - (self._answer.last_event_at or now) > 1.0:
            self.flight.abort()
            self.flight = None

    @property
    def over(self) -> bool:
        """Whether the sweep may forget this relay."""
        return self.outcome.done() and self.flight is None
