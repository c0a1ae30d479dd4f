"""One attempt: joins an engine's reply to the caller's exchange through the taps, and says how it went.

Everything here runs in socket callbacks; the request's coroutine sleeps on `outcome` meanwhile. The relay commits the
exchange (sends a head) only when the first good bytes are there, or when a heartbeat is due; until then the lifecycle may
try another backend.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from backends.dialects.errors import BUSY_STATUSES, fault_from_reply
from backends.ports import Flight, Loss
from domain.ask import Endpoint
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.patience import SOON, Patience, deadline_passed, no_first_token, too_slow
from gateway.http.edge.taps import HEARTBEAT, PlainTap, StreamTap, Tap
from gateway.story import Story

MAX_ERROR_BODY_BYTES: Final = 64 * 1024
"""Engine error bodies are under 1 KiB; what is longer is cut, not trusted."""

_LOSSES: Final = {
    Loss.CONNECT: Kind.CONNECT_FAILED,
    Loss.CAPACITY: Kind.ENGINE_BUSY,
    Loss.NO_REPLY: Kind.RESET_BEFORE_REPLY,
    Loss.CUT: Kind.BROKEN_STREAM,
    Loss.GARBLED: Kind.INVALID_REPLY,
}


class ReplyRelay(Listener):
    """See the module.

    Args:
        tap: the meter and judge of this reply.
        after: taps behind it, in order.
        backend: id of the backend that was called.
        called: what was called, and the names engines know the model by, which no error message may repeat.
        first_token_s: how long the engine may take until its first event.
        begin_s: the same for an engine that was taken out; shorter for plain replies, whose first event is their end.
        headers: makes the reply's header lines when the exchange is committed; they carry timings, so not sooner.
    """

    __slots__ = (
        "_after", "_begin_s", "_called", "_clock", "_direct", "_error_body", "_exchange", "_first_token_s", "_headers",
        "_patience", "_paused_at", "_paused_s", "_resumed_at", "_retry_after", "_started_at", "_status", "_tap", "_written_at",
        "backend", "flight", "look_at", "mode", "outcome", "story",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        story: Story,
        tap: StreamTap | PlainTap,
        after: tuple[Tap, ...],
        *,
        backend: str,
        called: tuple[Endpoint, tuple[str, ...]],
        headers: Callable[[], bytes],
        first_token_s: float,
        begin_s: float,
        patience: Patience,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._exchange = exchange
        self.story = story
        self._tap = tap
        self._after = after
        self.backend = backend
        self._called = called
        self._headers = headers
        self._retry_after: bytes | None = None
        self._first_token_s = first_token_s
        self._begin_s = begin_s
        self._patience = patience
        self._clock = clock
        self._status = 0
        self.mode = ""
        """What is coming: an `answer` or an `error`; empty until its head is there."""
        self._direct = False
        self._error_body = b""
        self._started_at = self._written_at = clock()
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._resumed_at = 0.0
        self.flight: Flight | None = None
        self.look_at = 0.0
        """When the sweep should check again; events only ever make it later, so they need not touch it."""
        self.outcome: asyncio.Future[Fault | None] = loop.create_future()
        """None when the whole answer was handed on; the Fault that ended the attempt otherwise."""

    # --- from the engine ------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """See `backends.ports.ReplySink`."""
        self._status = status
        if status != 200:
            self.mode = "error"
            self._retry_after = headers.get(b"retry-after")
            return
        kind = headers.get(b"content-type", b"")
        wanted = b"text/event-stream" if isinstance(self._tap, StreamTap) else b"application/json"
        if kind == wanted or kind.partition(b";")[0].strip().lower() == wanted:
            self.mode = "answer"
        else:
            self._give_up(
                Fault(Kind.INVALID_REPLY, "The engine sent no usable answer. Try again.", retry=SOON, detail=f"content-type {kind[:64]!r}")
            )

    def on_data(self, data: bytes) -> None:
        """See `backends.ports.ReplySink`."""
        if self.mode == "error":
            if len(self._error_body) < MAX_ERROR_BODY_BYTES:
                self._error_body += data[:MAX_ERROR_BODY_BYTES]
            return
        tap = self._tap
        out = tap.feed(data)
        if out:
            if self._direct:
                self._exchange.write(out)
            else:
                self._hand_on(out)
        if not tap.over or self.outcome.done():
            return
        if tap.fault is not None:
            self._give_up(tap.fault)
        else:
            # `[DONE]` is the end for the caller; the engine's last chunk may still be on its way
            self._complete()

    def on_end(self) -> None:
        """See `backends.ports.ReplySink`."""
        self.flight = None
        if self.outcome.done():
            return
        if self.mode == "error":
            self._refused()
            return
        tap = self._tap
        self.story.answer_at = self.story.answer_at or self._clock()
        out = tap.end()
        if tap.fault is not None:
            self._resolve(tap.fault)
            return
        if isinstance(tap, PlainTap):
            self._whole(out)
            return
        if out:
            self._hand_on(out)
        self._complete()

    def on_loss(self, loss: Loss, detail: str) -> None:
        """See `backends.ports.ReplySink`."""
        self.flight = None
        if self.outcome.done():
            return
        if self.mode == "error" and self._status in BUSY_STATUSES:
            self._refused()  # the status says it all; that its text was cut says nothing more
            return
        kind = _LOSSES[loss]
        if loss is Loss.CUT and not self._exchange.started:
            kind = Kind.RESET_BEFORE_REPLY if isinstance(self._tap, PlainTap) else kind
        self._resolve(Fault(kind, "The engine serving this request could not answer it. Try again.", retry=SOON, detail=detail))

    def _refused(self) -> None:
        endpoint, served = self._called
        self._resolve(fault_from_reply(self._status, self._error_body, endpoint=endpoint, retry_after=self._retry_after, served=served))

    # --- towards the caller ---------------------------------------------------------------------------------------

    def _hand_on(self, data: bytes) -> None:
        exchange = self._exchange
        for tap in self._after:
            data = tap.feed(data)
        if not exchange.started:
            self.story.answer_at = self.story.first_event_at
            self.story.handed_on_at = self._clock()
            exchange.start(self._headers())
        self._direct = not self._after
        exchange.write(data)

    def _whole(self, body: bytes) -> None:
        for tap in self._after:
            body = tap.feed(body)
        self.story.handed_on_at = self._clock()
        self._exchange.reply(200, self._headers(), body)
        self._resolve(None)

    def _complete(self) -> None:
        self._exchange.end()
        self._resolve(None)

    def _give_up(self, fault: Fault) -> None:
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.abort()
        self._resolve(fault)

    def _resolve(self, fault: Fault | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(fault)
            self.look_at = 0.0

    # --- from the caller's connection -----------------------------------------------------------------------------

    def gone(self) -> None:
        """The caller left: the engine must stop at once."""
        self._give_up(Fault(Kind.CLIENT_GONE, "The caller closed the connection before the answer was complete."))

    def full(self) -> None:
        """The caller reads too slowly: stop reading from the engine, so that memory stays bounded."""
        self._paused_at = self._clock()
        self.look_at = 0.0
        if self.flight is not None:
            self.flight.pause()

    def drained(self) -> None:
        """Room again: read on; the pause does not count as the engine's silence."""
        now = self._clock()
        if self._paused_at is not None:
            self._paused_s += now - self._paused_at
        self._paused_at = None
        self._written_at = self._resumed_at = now
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

    def let_go(self, now: float, *, at_once: bool) -> None:
        """The backend was taken out of rotation: an answer that has not begun is not waited for any longer than a first token
        may take, and not at all when the backend was found hanging."""
        if self.last_event_at is None and (at_once or now - self._started_at > self._begin_s):
            why = "The engine serving this request stopped working. Try again."
            self._give_up(Fault(Kind.BACKEND_LOST, why, retry=SOON, detail=f"{now - self._started_at:.1f} s without an answer"))

    @property
    def last_event_at(self) -> float | None:
        """When the last event of this attempt's answer came; None before the first."""
        return self.story.last_event_at if self.story.events else None

    # --- from the clock -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Enforce deadlines and send the heartbeat; called by the worker's sweep when `look_at` has passed."""
        if self.outcome.done():
            self._drop_tail(now)
            return
        limits, end_at = self._patience, self.story.end_at
        if now > end_at:
            self._give_up(deadline_passed(self.story))
            return
        if self._paused_at is not None:
            self.look_at = min(self._paused_at + limits.slow_reader_s, end_at)
            if now > self.look_at:
                self.cut()
            return
        last = self.last_event_at
        if last is None:
            late_at, late = self._started_at + self._first_token_s, no_first_token(self._first_token_s)
        else:
            late_at, late = too_slow(limits, self.story, last=max(last, self._resumed_at), paused_s=self._paused_s)
        if now > late_at:
            self._give_up(late)
            return
        self.look_at = late_at = min(late_at, end_at)
        if isinstance(self._tap, StreamTap) and limits.heartbeat_s:
            beat_at = max(self._written_at, last or 0.0) + limits.heartbeat_s
            if now >= beat_at:
                self._heartbeat(now)
                beat_at = now + limits.heartbeat_s
            self.look_at = min(late_at, beat_at)

    def _heartbeat(self, now: float) -> None:
        if not self._exchange.started:
            self._exchange.start(self._headers())
        self._written_at = now
        self._exchange.write(HEARTBEAT)

    def _drop_tail(self, now: float) -> None:
        """An engine that sent `[DONE]` but not the end of its message loses the connection after a while."""
        if self.flight is not None and now - (self.story.last_event_at or now) > 1.0:
            self.flight.abort()
            self.flight = None

    @property
    def over(self) -> bool:
        """Whether the sweep may forget this relay."""
        return self.outcome.done() and self.flight is None
