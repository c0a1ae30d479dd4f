"""The timeouts of an attempt: first token, gap between tokens, least rate, whole reply; and the Fault of an engine that exceeds one. Pure.

`Timeouts.of_attempt` computes the first-token timeout for the size of a prompt, when an attempt begins. `deadline_of` says until when the
engine has to send something next; `ReplyRelay.check` asks it in every sweep and ends an attempt that is late.
`ReplyRelay.abandon_unanswered` ends an attempt sooner when its backend is taken out of rotation. The deadline of the whole request over all
its attempts (`max_request_s`, `x-tidegate-timeout-s`) is `story.asked.end_at`; `deadline_passed` is its Fault.
"""

from math import inf
from typing import Final

import msgspec

from backends.signals import PrefillRate
from domain import retry_after
from domain.faults import Fault, Kind
from gateway.story import AttemptFacts, Story

MIN_RATE_AFTER_S: Final = 60.0
MIN_EVENTS_PER_S: Final = 1.0
"""A stream older than a minute must average one event a second, or a dripping engine could hold a caller for hours
while every single gap stays under the limit."""


class AttemptTimeouts(msgspec.Struct, frozen=True, gc=False):
    """How long one backend may take to answer one request, in seconds; the defaults are no limit."""

    first_token_s: float = inf
    """Until the backend begins to answer: the first token of a stream. Computed for plain replies too, whose first token nobody sees: a
    backend that is taken out of rotation is not waited for any longer than this."""
    first_event_s: float = inf
    """Until the reply's first event: `first_token_s` for a stream; for a plain reply, whose only event is its end, `plain_timeout_s`."""

    def less(self, spent_s: float, least_s: float) -> "AttemptTimeouts":
        """What is left of both after `spent_s`, but at least `least_s`."""
        return AttemptTimeouts(max(least_s, self.first_token_s - spent_s), max(least_s, self.first_event_s - spent_s))


NO_TIMEOUT: Final = AttemptTimeouts()


class Timeouts(msgspec.Struct, frozen=True):
    """The configured limits, from `engines` in tidegate.yaml; seconds, and tokens per second."""

    first_token_base_s: float
    first_token_tokens_per_s: float
    first_token_cap_s: float
    token_gap_s: float
    plain_timeout_s: float
    heartbeat_s: float
    slow_reader_s: float

    def of_attempt(self, prompt_bytes: int, measured: PrefillRate | None = None, *, stream: bool = True) -> AttemptTimeouts:
        """The timeouts of an attempt with a prompt of this size.

        Args:
            measured: the backend's prefill rate; one below `first_token_tokens_per_s` gets more time.
        """
        rate = self.first_token_tokens_per_s
        if measured is not None and measured.tokens_per_s:
            rate = min(rate, measured.tokens_per_s)
        # a quarter of the bytes is a fair guess at tokens; the deadline only has to be generous and bounded
        first_token_s = self.first_token_base_s + prompt_bytes / 4 / rate
        if first_token_s > self.first_token_cap_s:
            first_token_s = self.first_token_cap_s
        return AttemptTimeouts(first_token_s, first_token_s if stream else self.plain_timeout_s)


class RealtimeBounds(msgspec.Struct, frozen=True):
    """The bounds of sessions, from `data.realtime`; bytes and seconds."""

    max_message_bytes: int = 1024 * 1024
    max_session_s: float = 3600.0
    idle_s: float = 300.0
    ping_s: float = 20.0
    slow_reader_s: float = 30.0


def no_first_token(limit_s: float) -> Fault:
    """The fault of an engine that did not begin to answer in time."""
    return Fault(Kind.FIRST_TOKEN_TIMEOUT, f"The engine did not begin to answer within {limit_s:g} s.", detail=f"limit {limit_s:g} s")


def deadline_passed(story: Story) -> Fault:
    """The fault of a request whose deadline has passed. No engine has failed, and the same request would take as long again."""
    whole_s = story.asked.end_at - story.body_at
    message = f"The answer was not complete within the {whole_s:g} s that this request may take. Ask for less, or split it."
    return Fault(Kind.DEADLINE_PASSED, message, detail=f"{story.attempt.events} events by then")


def deadline_of(
    limits: Timeouts, timeouts: AttemptTimeouts, answer: AttemptFacts, *, started_at: float, resumed_at: float, paused_s: float
) -> tuple[float, Fault]:
    """Until when the engine has to send something next, and the Fault if it does not.

    Args:
        answer: the events of the attempt so far.
        resumed_at: when reading from the engine resumed after its caller had been slow; 0 if it never paused.
        paused_s: how long the stream was not read because its caller was slow.
    """
    last_event_at = answer.last_event_at
    if last_event_at is None:
        return started_at + timeouts.first_event_s, no_first_token(timeouts.first_event_s)
    return too_slow(limits, answer, last=max(last_event_at, resumed_at), paused_s=paused_s)


def too_slow(limits: Timeouts, answer: AttemptFacts, *, last: float, paused_s: float) -> tuple[float, Fault]:
    """When a stream that has begun will be too late if nothing more comes, and the Fault for that.

    Args:
        answer: the events of the attempt so far.
        last: when the last event came, or when reading resumed after a pause.
        paused_s: how long the stream was not read because its caller was slow.
    """
    begun = answer.first_event_at or last
    silent_at = last + limits.token_gap_s
    slow_at = begun + paused_s + max(MIN_RATE_AFTER_S, answer.events / MIN_EVENTS_PER_S)
    if silent_at <= slow_at:
        return silent_at, Fault(Kind.TOKEN_GAP_TIMEOUT, f"The engine was silent for {limits.token_gap_s:g} s.", retry=retry_after.SOON)
    detail = f"{answer.events} events in {slow_at - begun:.0f} s"
    return slow_at, Fault(Kind.TOKEN_GAP_TIMEOUT, "The engine answered too slowly to go on.", retry=retry_after.SOON, detail=detail)
