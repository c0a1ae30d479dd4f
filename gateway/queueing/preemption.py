"""Which request gives its place on a backend to a more urgent one that waits. Pure: the time is handed in.

Only one whose first token has not come: nothing of an answer is lost, and nobody has seen any. Of these the one of the lowest class
and, of equals, the one that was sent last: engines compute prompts in about the order in which they come, so the least has been done
for it. Nobody gives way twice, each that waits is given way to once, and in all so many a second (`Pace`): what is thrown away is
less than one prompt for each urgent request that had to wait.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import msgspec

PER_S: Final = 16.0
"""Requests that may give way each second, of one pool in one worker: more than urgent requests that find no room in a line that is well,
and few beside what an engine can be told to stop."""
BURST: Final = 32.0
"""As many as may at once, after two seconds of none: half of the requests that a new engine is taken to bear."""
AGAIN_S: Final = 0.02
"""After a look that found nobody, the next one comes no sooner: a look goes over all that is in flight."""

T = TypeVar("T")


class Sent(msgspec.Struct, Generic[T], frozen=True):
    """A request on a backend that may give way."""

    tier: int
    """`domain.priority.Class`."""
    sent_at: float
    what: T


def first_to_give_way(sent: Iterable[Sent[T]]) -> list[Sent[T]]:
    """In the order in which they would."""
    return sorted(sent, key=lambda one: (-one.tier, -one.sent_at))


class Pace:
    """How many may give way now."""

    __slots__ = ("_at", "_left", "_not_before")

    def __init__(self) -> None:
        self._left = BURST
        self._at = 0.0
        self._not_before = 0.0

    def allows(self, now: float) -> bool:
        """Whether it is worth a look."""
        if now < self._not_before:
            return False
        self._left = min(BURST, self._left + (now - self._at) * PER_S)
        self._at = now
        return self._left >= 1.0

    def gave(self) -> None:
        """One gives way."""
        self._left -= 1.0

    def nobody(self, now: float) -> None:
        """A look found none that could."""
        self._not_before = now + AGAIN_S
