"""Decides which request on a backend is preempted for a more urgent one that waits. Pure: the time is handed in.

Only requests without a first token are preempted: no part of an answer is lost, and no caller has seen any. The first candidate is of
the lowest class and, among equals, the one that was sent last: engines compute prompts in about their order of arrival, so the least
work has been done for it. No request is preempted twice, at most one is preempted for each waiter, and the rate is limited (`Pace`):
less than one prompt of work is lost for each urgent request that had to wait.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import msgspec

PER_S: Final = 16.0
"""Preemptions per second, of one pool in one worker: more than the urgent requests that find no capacity in a healthy queue, and few
beside the aborts that an engine can take."""
BURST: Final = 32.0
"""Preemptions at once, after two seconds of none: half of the requests that a new engine is taken to bear."""
AGAIN_S: Final = 0.02
"""The shortest time in seconds between a search without result and the next one: a search goes over all requests in flight."""

T = TypeVar("T")


class Sent(msgspec.Struct, Generic[T], frozen=True):
    """A request on a backend that may be preempted."""

    tier: int
    """Its `domain.priority.Class`."""
    sent_at: float
    request: T


def first_to_give_way(sent: Iterable[Sent[T]]) -> list[Sent[T]]:
    """The candidates in the order in which they are preempted."""
    return sorted(sent, key=lambda candidate: (-candidate.tier, -candidate.sent_at))


class Pace:
    """Limits the rate of preemptions: a token bucket of `PER_S` and `BURST`."""

    __slots__ = ("_at", "_left", "_not_before")

    def __init__(self) -> None:
        self._left = BURST
        self._at = 0.0
        self._not_before = 0.0

    def allows(self, now: float) -> bool:
        """Whether a preemption is allowed now, and worth a search."""
        if now < self._not_before:
            return False
        self._left = min(BURST, self._left + (now - self._at) * PER_S)
        self._at = now
        return self._left >= 1.0

    def gave_way(self) -> None:
        """Count a preemption."""
        self._left -= 1.0

    def found_none(self, now: float) -> None:
        """Note that a search found no candidate."""
        self._not_before = now + AGAIN_S
