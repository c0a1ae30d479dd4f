"""The timeouts of an attempt, and the fault of an engine that exceeds one. Pure: limits, the Story so far and the time are handed in.

An `Attempt` computes the time-outs of its backend (`gateway/request/attempt.py`); `ReplyRelay.check` enforces them
(`gateway/http/edge/relay.py`).
"""

from typing import Final

import msgspec

from backends.signals import PrefillRate
from domain.faults import Fault, Kind, Retry
from gateway.story import AttemptFacts, Story

MIN_RATE_AFTER_S: Final = 60.0
MIN_EVENTS_PER_S: Final = 1.0
"""A stream older than a minute must average one event a second, or a dripping engine could hold a caller for hours
while every single gap stays under the limit."""

RETRY_SOON: Final = Retry(should=True, after_s=1.0)


class Timeouts(msgspec.Struct, frozen=True):
    """How long an attempt may take, from `engines` in tidegate.yaml; seconds, and tokens per second."""

    first_token_base_s: float
    first_token_tokens_per_s: float
    first_token_cap_s: float
    token_gap_s: float
    plain_timeout_s: float
    heartbeat_s: float
    slow_reader_s: float

    def first_token_timeout_s(self, prompt_bytes: int, measured: PrefillRate | None = None) -> float:
        """How long an engine may take to begin to answer a prompt of this size; longer for one that was measured to be slower
        than `first_token_tokens_per_s`."""
        rate = self.first_token_tokens_per_s
        if measured is not None and measured.tokens_per_s:
            rate = min(rate, measured.tokens_per_s)
        # a quarter of the bytes is a fair guess at tokens; the deadline only has to be generous and bounded
        return min(self.first_token_base_s + prompt_bytes / 4 / rate, self.first_token_cap_s)


def no_first_token(limit_s: float) -> Fault:
    """The fault of an engine that did not begin to answer in time."""
    return Fault(Kind.FIRST_TOKEN_TIMEOUT, f"The engine did not begin to answer within {limit_s:g} s.", detail=f"limit {limit_s:g} s")


def deadline_passed(story: Story) -> Fault:
    """The fault of a request whose deadline has passed. No engine has failed, and the same request would take as long again."""
    whole_s = story.asked.end_at - story.body_at
    message = f"The answer was not complete within the {whole_s:g} s that this request may take. Ask for less, or split it."
    return Fault(Kind.DEADLINE_PASSED, message, detail=f"{story.attempt.events} events by then")


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
        return silent_at, Fault(Kind.TOKEN_GAP_TIMEOUT, f"The engine was silent for {limits.token_gap_s:g} s.", retry=RETRY_SOON)
    detail = f"{answer.events} events in {slow_at - begun:.0f} s"
    return slow_at, Fault(Kind.TOKEN_GAP_TIMEOUT, "The engine answered too slowly to go on.", retry=RETRY_SOON, detail=detail)
