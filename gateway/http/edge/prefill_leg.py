"""The prefill call of a disaggregated request: one engine computes the prompt, and nothing of its reply goes to the caller.

The worker's sweep watches it like a relay, so deadlines, drains and hanging engines end it as well. It sends the caller's heartbeats,
because no relay runs meanwhile. Once the engine has replied, the leg stands for the KV that the decode engine is still to fetch.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from backends.dialects.errors import fault_from_reply
from backends.dialects.handover import MAX_REPLY_BYTES
from backends.ports import Flight, Loss
from domain import retry_after
from domain.clock import Clock
from domain.faults import Fault, Kind
from gateway.http.edge.attempt_faults import caller_gone, lost_reply, stopped_working, unusable_reply
from gateway.http.edge.exchange import Exchange, Listener
from gateway.http.edge.relay import MAX_ERROR_BODY_BYTES, Heartbeat, ReplySource
from gateway.http.edge.timeouts import no_first_token


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _PrefillReply(msgspec.Struct):
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_PrefillReply).decode


class PrefillLeg(Listener):
    """One call to a prefill engine and its reply: a `backends.ports.ReplySink`.

    Args:
        source: the engine, and how long it may take.
        heartbeat: tells the caller that its request is under way; None where nothing does.
        fetched: says whether the decode engine has fetched the KV.
    """

    __slots__ = (
        "_clock",
        "_exchange",
        "_fetched",
        "_heartbeat",
        "_holds_kv",
        "_retry_after",
        "_source",
        "_started_at",
        "_status",
        "backend",
        "body",
        "flight",
        "look_at",
        "outcome",
    )

    def __init__(
        self, exchange: Exchange, source: ReplySource, *, heartbeat: Heartbeat | None, fetched: Callable[[], bool], clock: Clock
    ) -> None:
        self._exchange = exchange
        self._source = source
        self.backend = source.backend
        self._heartbeat = heartbeat
        self._fetched = fetched
        self._holds_kv = True
        self._clock = clock
        self._started_at = clock()
        self._status = 0
        self._retry_after: bytes | None = None
        self.body = b""
        self.flight: Flight | None = None
        self.look_at = 0.0
        """When the sweep should look again."""
        self.outcome: asyncio.Future[Fault | None] = asyncio.get_running_loop().create_future()
        """None when the prompt is computed and the engine's reply is in `body`; otherwise the Fault that ended the call."""

    # --- from the engine ------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status = status
        self._retry_after = headers.get(b"retry-after")

    def on_data(self, data: bytes) -> None:
        self.body += data
        if self._status != 200:
            self.body = self.body[:MAX_ERROR_BODY_BYTES]
        elif len(self.body) > MAX_REPLY_BYTES:
            self.end_with(unusable_reply(f"more than {MAX_REPLY_BYTES:,} bytes for one token"))

    def on_end(self) -> None:
        self.flight = None
        if self._status == 200:
            self._resolve(None)
            return
        source = self._source
        fault = fault_from_reply(
            self._status,
            self.body,
            endpoint=source.endpoint,
            retry_after=self._retry_after,
            served=source.served,
            others=source.others(),
        )
        self._resolve(fault)

    def on_loss(self, loss: Loss, detail: str) -> None:
        self.flight = None
        self._resolve(lost_reply(loss, detail, stream=False))

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the engine had cached, as its reply says; None when it does not say."""
        try:
            usage = _decode(self.body).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if usage is None or usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens

    # --- what ends it sooner --------------------------------------------------------------------------------------

    def gone(self) -> None:
        """The caller left: the engine must stop at once."""
        self.end_with(caller_gone())

    def end_with(self, fault: Fault) -> None:
        """End it for a reason of the gateway's own; an engine that still computes stops and frees what it has."""
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.abort()
        self._resolve(fault)

    def abandon_unanswered(self, now: float, *, at_once: bool) -> None:
        """Give up a prompt that is not computed, on a backend that was taken out of rotation: once it is overdue, or `at_once`."""
        waited_s = now - self._started_at
        if at_once or waited_s > self._source.timeouts.first_token_s:
            self.end_with(stopped_working(f"{waited_s:.1f} s without its prompt computed"))

    def close(self) -> None:
        """The request is over, or goes another way."""
        self.end_with(Fault(Kind.BACKEND_LOST, "The other half of this request failed. Try again.", retry=retry_after.SOON))
        self._holds_kv = False

    def _resolve(self, fault: Fault | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(fault)
            self.look_at = 0.0

    @property
    def last_event_at(self) -> float | None:
        """None: a prefill engine answers with one body, not with events."""
        return None

    # --- from the clock -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Enforce the deadline and send the heartbeat; afterwards, see whether the KV was fetched."""
        if self.outcome.done():
            self._holds_kv = self._holds_kv and not self._fetched()
            return
        timeout_s = self._source.timeouts.first_token_s
        late_at = self._started_at + timeout_s
        if now > late_at:
            self.end_with(no_first_token(timeout_s))
            return
        self.look_at = late_at
        if self._heartbeat is not None and self._exchange.listener is self:
            self.look_at = min(late_at, self._heartbeat.beat(now))

    @property
    def over(self) -> bool:
        """Whether the sweep may forget this leg."""
        return self.outcome.done() and self.flight is None and not self._holds_kv
