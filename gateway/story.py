"""The notebook of one request, closed into a Record.

Steps write into the Story; nothing reads it until it is closed. Metrics, the access log and (later) spans, ledger and
audit each read the closed Record once, so no step knows who observes it.
"""

from bisect import bisect_left
from typing import Final

import msgspec

from domain.faults import Fault
from domain.identity import Caller
from domain.usage import NO_USAGE, Usage
from routing.schedule import Route

OK: Final = "ok"
"""The one outcome that is no Fault kind: a whole answer was handed to the caller."""

GAP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 0.8, 2.0, 8.0)
"""Upper bounds of the inter-token latency histogram, seconds. Dense from 5 to 80 ms, where engines decode; the last
bucket (above 8 s) is a stall. Counted in the Story because a gap is gone once the next event has passed."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished request, as everything that observes requests sees it. Times are seconds, tokens and bytes integers."""

    request_id: str
    at_unix: float
    """When the request head was complete, seconds since the epoch."""
    outcome: str
    """`ok` or a `domain.faults.Kind` value."""
    status: int
    """HTTP status sent; 499 when the caller left before one was sent."""
    duration_s: float
    overhead_s: float
    """Time spent by the gateway itself: from the request's last byte to the dispatch, and from the engine's first byte to
    handing it on. Waiting for engines, queues and callers is not in it."""
    tenant: str = ""
    project: str = ""
    key_id: str = ""
    endpoint: str = ""
    model: str = ""
    """Public model name, only when the configuration knows it; callers' own strings never get here."""
    pool: str = ""
    revision: str = ""
    backend: str = ""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """Backends whose attempt failed and was made good by another one."""
    stream: bool = False
    usage: Usage = NO_USAGE
    closing: str = ""
    """How the Hold ended: `settle`, `estimate`, `release`, or empty when none was taken."""
    ttft_s: float | None = None
    """From the request's last byte to the first event of the answer."""
    decode_s: float | None = None
    """From the first event to the last one; what time per output token is computed from. None below two events."""
    events: int = 0
    gaps: tuple[int, ...] = ()
    """Inter-token gaps counted by `GAP_BOUNDS_S`, one more bucket than bounds."""
    queue_s: float = 0.0
    request_bytes: int = 0
    reply_bytes: int = 0
    policy: str = ""
    """Digest of the PolicySet that governed the request."""
    engine_request_id: str = ""
    """The id engines saw; empty when it is `request_id`."""
    detail: str = ""
    """For operators: the cause behind a fault, cleaned of prompts, secrets and control characters."""
    lora: str = ""
    """The adapter that was asked for, by its engine-side name."""
    lora_wait_s: float = 0.0
    """Waiting for it to be loaded; in `ttft_s`, not in `overhead_s`."""


class Story(msgspec.Struct):
    """What is known of a request so far. One writer (the request's coroutine and its taps), no reader until `close`.

    A msgspec struct only because its defaults cost nothing per request; times are monotonic seconds.
    """

    request_id: str
    """The caller's own, when it sent a sane one: what replies and logs carry."""
    started_at: float
    at_unix: float
    body_at: float
    """When the request's last byte was there; equals `started_at` until then."""
    own_id: str = ""
    """The gateway's, unique: what holds and engines know the request by. Engines abort by id, so no caller may choose one."""
    caller: Caller | None = None
    ask_endpoint: str = ""
    model: str = ""
    stream: bool = False
    expose: bool = False
    routing: str = ""
    output_cap: int = 0
    policy: str = ""
    pool: str = ""
    revision: str = ""
    route: Route | None = None
    backend: str = ""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    queue_s: float = 0.0
    lora: str = ""
    lora_wait_s: float = 0.0
    dispatched_at: float | None = None
    answer_at: float | None = None
    """When the engine's bytes came that the reply begins with: a first event, or the end of a plain reply."""
    first_event_at: float | None = None
    last_event_at: float | None = None
    handed_on_at: float | None = None
    events: int = 0
    gaps: list[int] | None = None
    usage: Usage = NO_USAGE
    usage_reported: bool = False
    closing: str = ""
    fault: Fault | None = None
    status: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0

    def note_event(self, now: float) -> None:
        """One event of the answer passed at `now`; the first sets the time to first token, later ones a gap each."""
        last = self.last_event_at
        self.last_event_at = now
        self.events += 1
        if last is None:
            self.first_event_at = now
            return
        gaps = self.gaps
        if gaps is None:
            gaps = self.gaps = [0] * (len(GAP_BOUNDS_S) + 1)
        gaps[bisect_left(GAP_BOUNDS_S, now - last)] += 1

    def overhead_s(self, now: float) -> float:
        """Seconds the gateway itself has taken so far, engines and queue excluded."""
        if self.dispatched_at is None:
            return now - self.body_at
        before = self.dispatched_at - self.body_at - self.queue_s
        if self.answer_at is None or self.handed_on_at is None:
            return before
        return before + (self.handed_on_at - self.answer_at)

    def close(self, now: float) -> Record:
        """The finished Record; call once, when nothing more can happen to the request."""
        caller, fault, first, last = self.caller, self.fault, self.first_event_at, self.last_event_at
        return Record(
            self.request_id,
            self.at_unix,
            OK if fault is None else fault.kind.value,
            self.status,
            now - self.started_at,
            self.overhead_s(now),
            caller.tenant if caller else "",
            caller.project if caller else "",
            caller.key_id if caller else "",
            self.ask_endpoint,
            self.model,
            self.pool,
            self.revision,
            self.backend,
            self.attempts,
            self.failed,
            self.stream,
            self.usage,
            self.closing,
            None if first is None else first - self.body_at,
            last - first if first is not None and last is not None and self.events > 1 else None,
            self.events,
            tuple(self.gaps) if self.gaps else (),
            self.queue_s,
            self.request_bytes,
            self.reply_bytes,
            self.policy,
            self.own_id if self.own_id != self.request_id else "",
            (fault.detail or "") if fault else "",
            self.lora,
            self.lora_wait_s,
        )
