"""The half of a shared request that computes its prompt: nothing of its reply goes to the caller.

Watched like a relay, so that deadlines, drains and hanging engines end it as well; the caller's heartbeats are its, because
no relay runs meanwhile. Once it has replied it stands for the KV that the other engine is still to fetch.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from backends.dialects.errors import fault_from_reply
from backends.dialects.handover import MAX_REPLY_BYTES
from backends.ports import Flight, Loss
from domain.ask import Endpoint
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.patience import SOON, no_first_token
from gateway.http.edge.relay import MAX_ERROR_BODY_BYTES
from gateway.http.edge.taps import HEARTBEAT

_LOSSES: Final = {
    Loss.CONNECT: Kind.CONNECT_FAILED,
    Loss.CAPACITY: Kind.ENGINE_BUSY,
    Loss.NO_REPLY: Kind.RESET_BEFORE_REPLY,
    Loss.CUT: Kind.RESET_BEFORE_REPLY,
    Loss.GARBLED: Kind.INVALID_REPLY,
}


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class PrefillLeg(Listener):
    """See the module.

    Args:
        called: what was called, and the names engines know the model by, which no error message may repeat.
        within_s: how long the engine may take.
        beat_s: seconds between heartbeats to the caller; 0 for none.
        headers: makes the reply's header lines when a heartbeat has to begin it.
        fetched: asked whether the KV is with the other engine; what is to be done then is done by whoever answers.
    """

    __slots__ = (
        "_beat_at", "_beat_s", "_called", "_clock", "_exchange", "_fetched", "_headers", "_held", "_retry_after",
        "_started_at", "_status", "_within_s", "backend", "body", "flight", "look_at", "outcome",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        *,
        backend: str,
        called: tuple[Endpoint, tuple[str, ...]],
        within_s: float,
        beat_s: float,
        headers: Callable[[], bytes],
        fetched: Callable[[], bool],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._exchange = exchange
        self.backend = backend
        self._called = called
        self._within_s = within_s
        self._beat_s = beat_s
        self._headers = headers
        self._fetched = fetched
        self._held = True
        self._clock = clock
        self._started_at = clock()
        self._beat_at = self._started_at + beat_s
        self._status = 0
        self._retry_after: bytes | None = None
        self.body = b""
        self.flight: Flight | None = None
        self.look_at = 0.0
        """When the sweep should look again."""
        self.outcome: asyncio.Future[Fault | None] = loop.create_future()
        """None when the prompt is computed and its reply is in `body`; the Fault that ended it otherwise."""

    # --- from the engine ------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """See `backends.ports.ReplySink`."""
        self._status = status
        self._retry_after = headers.get(b"retry-after")

    def on_data(self, data: bytes) -> None:
        """See `backends.ports.ReplySink`."""
        self.body += data
        if self._status != 200:
            self.body = self.body[:MAX_ERROR_BODY_BYTES]
        elif len(self.body) > MAX_REPLY_BYTES:
            self.end_with(_unusable(f"more than {MAX_REPLY_BYTES:,} bytes for one token"))

    def on_end(self) -> None:
        """See `backends.ports.ReplySink`."""
        self.flight = None
        if self._status == 200:
            self._resolve(None)
            return
        endpoint, served = self._called
        self._resolve(fault_from_reply(self._status, self.body, endpoint=endpoint, retry_after=self._retry_after, served=served))

    def on_loss(self, loss: Loss, detail: str) -> None:
        """See `backends.ports.ReplySink`."""
        self.flight = None
        self._resolve(Fault(_LOSSES[loss], "The engine serving this request could not answer it. Try again.", retry=SOON, detail=detail))

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt, what the engine had already, as its reply says; None when it does not."""
        try:
            usage = _decode(self.body).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if usage is None or usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens

    # --- what ends it sooner --------------------------------------------------------------------------------------

    def gone(self) -> None:
        """The caller left: the engine must stop at once."""
        self.end_with(Fault(Kind.CLIENT_GONE, "The caller closed the connection before the answer was complete."))

    def end_with(self, fault: Fault) -> None:
        """End it for a reason of the gateway's own; an engine that still computes stops and frees what it has."""
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.abort()
        self._resolve(fault)

    def let_go(self, now: float, *, at_once: bool) -> None:
        """The backend was taken out of rotation; see `ReplyRelay.let_go`."""
        if at_once or now - self._started_at > self._within_s:
            why = "The engine serving this request stopped working. Try again."
            self.end_with(Fault(Kind.BACKEND_LOST, why, retry=SOON, detail=f"{now - self._started_at:.1f} s without its prompt computed"))

    def close(self) -> None:
        """The request is over, or goes another way."""
        self.end_with(Fault(Kind.BACKEND_LOST, "The other half of this request failed. Try again.", retry=SOON))
        self._held = False

    def _resolve(self, fault: Fault | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(fault)
            self.look_at = 0.0

    @property
    def last_event_at(self) -> float | None:
        """It has no events."""
        return None

    # --- from the clock -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Enforce the deadline and send the heartbeat; afterwards, see whether the KV was fetched."""
        if self.outcome.done():
            self._held = self._held and not self._fetched()
            return
        late_at = self._started_at + self._within_s
        if now > late_at:
            self.end_with(no_first_token(self._within_s))
            return
        self.look_at = late_at
        if self._beat_s and self._exchange.listener is self:
            if now >= self._beat_at:
                if not self._exchange.started:
                    self._exchange.start(self._headers())
                self._exchange.write(HEARTBEAT)
                self._beat_at = now + self._beat_s
            self.look_at = min(late_at, self._beat_at)

    @property
    def over(self) -> bool:
        """Whether the sweep may forget it."""
        return self.outcome.done() and self.flight is None and not self._held


def _unusable(detail: str) -> Fault:
    return Fault(Kind.INVALID_REPLY, "The engine sent no usable answer. Try again.", retry=SOON, detail=detail)
