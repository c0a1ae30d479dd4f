"""What a request notes for its trace while it is under way: the time of each step, its waits and its attempts.

`Tracing` opens the notes (`open_story`), settles whether the trace is sampled before its first attempt, and makes the `traceparent` that
the engine gets. `gateway.telemetry.traces` decides at the end, from the closed Record, whether an exporter gets the request, and
`gateway.telemetry.spans` makes spans of it in a thread. Where nothing is traced, `Story.trace` is None, and a step does no more than ask
for that. The notes hold times, names and counts, and no text of a caller.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from backends.ports import Call
from domain.faults import Fault
from policies.traces import TracePolicy

if TYPE_CHECKING:
    from gateway.story import AttemptFacts, Story

SAMPLED: Final = 1
"""The bit of `trace-flags` that says that the sender records its spans (W3C Trace Context, 3.2.2.5)."""
RANDOM: Final = 2
"""The bit that says that the trace id is random, and so can be sampled by (W3C Trace Context level 2)."""
HALF: Final = 1 << 64
"""The ratio is compared with the last 64 bits of the trace id, as OpenTelemetry's `TraceIdRatioBased` does, so that two services with the
same ratio keep the same traces."""
MAX_STEPS: Final = 64
"""Steps that are noted of one request, at most: a request that falls back along a chain of models repeats some."""
MAX_ATTEMPTS: Final = 32
"""Attempts that are noted of one request, at most."""
ID_BLOCK: Final = 64
"""Ids that are drawn at once."""
NO_ID: Final = "0" * 16


class TraceTerms(msgspec.Struct, frozen=True):
    """Which requests of a tenant are traced."""

    ratio: float
    """Share of the requests that are traced whatever becomes of them."""
    slow_s: float
    """A request that takes longer is traced."""
    slow_ttft_s: float
    """A request whose first token comes later is traced."""


class AttemptNote(msgspec.Struct, eq=False):
    """One call to an engine."""

    span_id: str
    backend: str
    server: tuple[str, int]
    """Host and port of the engine."""
    dialect: str
    model: str
    """The public name of the model."""
    own_id: str
    """The id that the engine was given."""
    began_at: float
    engine_model: str = ""
    facts: "AttemptFacts | None" = None
    """The events of the answer; None for a call that computes a prompt only."""
    traceparent: bytes = b""
    """What the engine was sent."""
    ended_at: float | None = None
    fault: Fault | None = None
    cancelled: bool = False
    """Whether the call was given up: the caller left, or another attempt answered first."""

    def traced(self, call: Call) -> Call:
        """The call with the `traceparent` whose parent is this attempt; as it is where the tenant's requests are not traced."""
        if not self.traceparent:
            return call
        return Call(call.method, call.path, call.body, call.request_id, self.traceparent, call.tracestate, call.content_type)

    def over(self, now: float, outcome: "asyncio.Future[Fault | None]") -> None:
        """Note that the call is over.

        Args:
            outcome: done, or not, where the call was given up.
        """
        self.ended_at = now
        self.cancelled = outcome.cancelled() or not outcome.done()
        self.fault = None if self.cancelled or outcome.exception() is not None else outcome.result()


class TraceNotes(msgspec.Struct, eq=False):
    """The course of one request. Times are those of the worker's clock."""

    trace_id: str
    span_id: str
    """The id of the request's own span."""
    started_at: float
    parent_id: str = ""
    """The caller's span; empty where the caller sent no context."""
    state: str = ""
    """The caller's `tracestate`."""
    flags: int = RANDOM
    """The caller's flags, or those of a new trace."""
    steps: list[tuple[str, float]] = msgspec.field(default_factory=list)
    """Each step behind `authenticate`, with the time at which it began; it lasts until the next one begins."""
    waits: tuple[tuple[float, float, str, int], ...] = ()
    """Each wait in a queue: its begin and end, how it ended, and the tokens that were ahead."""
    attempts: tuple[AttemptNote, ...] = ()
    terms: TraceTerms | None = None
    """None where the tenant's requests are not traced, and before the first attempt."""
    settled: bool = False
    """Whether `terms` and `sampled` are final."""
    sampled: bool = False
    """Whether the request is traced whatever becomes of it."""
    max_tokens: int | None = None
    choices: int = 1

    def begin(self, step: str, now: float) -> None:
        """Note that a step begins; the one before it is over."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append((step, now))


def trace_ids(token_hex: Callable[[int], str]) -> Callable[[], str]:
    """Makes ids of 16 hexadecimal digits: one is a span's, two are a trace's.

    Args:
        token_hex: as `secrets.token_hex`: so many random bytes as hexadecimal digits.
    """

    def ids() -> Iterator[str]:
        while True:
            digits = token_hex(ID_BLOCK * 8)
            yield from [found for at in range(0, ID_BLOCK * 16, 16) if (found := digits[at : at + 16]) != NO_ID]

    return ids().__next__


class Tracing:
    """Opens the notes of this worker's requests.

    Args:
        usual: which requests are traced where their policy does not say.
        new_id: as `trace_ids` makes.
        callers_flag: whether the caller's sampled flag decides instead of the ratio.
        engines_always: whether engines are told to record every request.
    """

    def __init__(self, usual: TraceTerms, new_id: Callable[[], str], *, callers_flag: bool, engines_always: bool) -> None:
        self.usual = usual
        self._new_id = new_id
        self._callers_flag = callers_flag
        self._engines_always = engines_always
        self._terms: dict[int, tuple[TracePolicy, TraceTerms | None]] = {}

    def opened(self, traceparent: bytes | None, tracestate: bytes | None, now: float) -> TraceNotes:
        """The notes of a new request, in the caller's trace where it sent one.

        Args:
            traceparent: well formed (`RequestHead.trace`).
        """
        new_id = self._new_id
        if traceparent is None:
            notes = TraceNotes(new_id() + new_id(), new_id(), now)
        else:
            text = traceparent.decode("ascii")
            state = "" if tracestate is None else tracestate.decode("ascii")
            notes = TraceNotes(text[3:35], new_id(), now, text[36:52], state, int(text[53:55], 16))
        return notes

    def settle(self, notes: TraceNotes, policy: TracePolicy | None) -> None:
        """Decide, once, whether the trace is sampled whatever becomes of the request, and by which terms it is kept otherwise."""
        if notes.settled:
            return
        notes.settled = True
        terms = notes.terms = self.usual if policy is None else self._of(policy)
        if terms is None:
            return
        if self._callers_flag and notes.parent_id:
            notes.sampled = bool(notes.flags & SAMPLED)
        else:
            notes.sampled = int(notes.trace_id[16:], 16) < round(terms.ratio * HALF)

    def attempt(self, story: "Story", backend: str, server: tuple[str, int], dialect: str, now: float) -> AttemptNote:
        """The note of a call that is sent now. Its `traceparent` is empty where the engine gets the caller's own."""
        notes = story.trace
        assert notes is not None
        policy = story.asked.tenant_policy
        self.settle(notes, None if policy is None else policy.traces)
        note = AttemptNote(self._new_id(), backend, server, dialect, story.asked.model, story.own_id, now)
        if notes.terms is not None:
            flags = notes.flags & RANDOM | (SAMPLED if notes.sampled or self._engines_always else 0)
            note.traceparent = f"00-{notes.trace_id}-{note.span_id}-{flags:02x}".encode("ascii")
        if len(notes.attempts) < MAX_ATTEMPTS:
            notes.attempts += (note,)
        return note

    def _of(self, policy: TracePolicy) -> TraceTerms | None:
        """The terms of a policy. They are remembered by the policy object, which lives as long as its set of policies."""
        known = self._terms.get(id(policy))
        if known is None or known[0] is not policy:
            usual, terms = self.usual, None
            if policy.enabled:
                terms = TraceTerms(
                    usual.ratio if policy.ratio is None else policy.ratio,
                    usual.slow_s if policy.slow_s is None else policy.slow_s,
                    usual.slow_ttft_s if policy.slow_ttft_s is None else policy.slow_ttft_s,
                )
            if len(self._terms) >= 1000:
                self._terms.clear()
            known = self._terms[id(policy)] = (policy, terms)
        return known[1]
