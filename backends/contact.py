"""Backends that could not be reached lately. Pure: failed attempts and answered polls in; which backends to avoid, and when each is asked
again, out.

A refused connection says at once what health polls (`backends.health`) say after three of them, and the failure of one request is enough.
So a backend that refuses or breaks a connection is avoided until it answers a check, and checks come within a second. While no backend of a
pool can be reached, its requests wait in the queue instead of failing one after the other: an outage of a second costs them a second.

This module decides nothing about health: a backend that stays away goes down by its polls, and comes back as `backends.health` says.
"""

from collections.abc import Callable, Iterable
from typing import Final

from domain.faults import Kind

LOST: Final = frozenset({Kind.CONNECT_FAILED, Kind.RESET_BEFORE_REPLY})
"""Ends of attempts after which the backend is avoided until it answers a check."""

CHECK_FIRST_S: Final = 0.1
CHECK_LONGEST_S: Final = 2.0
"""Seconds before the first check of a lost backend, and the longest between two. The pause doubles when checks find nothing, up to
`CHECK_AWAY_S`, and each time when the backend is lost again without an answer between: so requests whose connections fail although checks
succeed do not keep the gateway busy."""
CHECK_AWAY_S: Final = 0.4


class LostContacts:
    """The backends of one worker that could not be reached. Bounded by the backends of the fleet.

    `on_lost` is called with the id of a backend that is lost from now on, `on_found` with one that can be reached again.
    """

    __slots__ = ("_pauses", "lost", "on_found", "on_lost")

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}
        """The backends to avoid, each with the reason in words for operators; nearly always empty."""
        self._pauses: dict[str, float] = {}
        """Seconds until the next first check of a backend that was lost since its last whole answer."""
        self.on_lost: Callable[[str], None] = lambda backend: None
        self.on_found: Callable[[str], None] = lambda backend: None

    def failed(self, backend: str, kind: Kind) -> None:
        """Record an attempt that ended in one of the ways of `LOST`."""
        if backend not in self.lost:
            self.lost[backend] = f"cannot be reached ({kind.value}); asked again until it answers"
            self.on_lost(backend)

    def first_pause_s(self, backend: str) -> float:
        """Seconds before the first check of a backend that was lost now."""
        pause_s = self._pauses.get(backend, CHECK_FIRST_S)
        self._pauses[backend] = min(2.0 * pause_s, CHECK_LONGEST_S)
        return pause_s

    def answered(self, backend: str) -> None:
        """Record a whole answer: the backend works, and its next loss begins with the shortest pause."""
        if self.lost or self._pauses:
            self._pauses.pop(backend, None)
            self.found(backend)

    def found(self, backend: str) -> None:
        """Record that the backend can be reached, or that `backends.health` decides about it from now on."""
        if self.lost.pop(backend, None) is not None:
            self.on_found(backend)

    def forget(self, backend: str) -> None:
        """Drop everything of a backend that left."""
        self.lost.pop(backend, None)
        self._pauses.pop(backend, None)

    def none_left(self, backends: Iterable[str]) -> bool:
        """Whether there are such backends, and none of them can be reached."""
        if not self.lost:
            return False
        known = list(backends)
        return bool(known) and self.lost.keys() >= set(known)


def next_pause_s(pause_s: float) -> float:
    """Seconds until the next check, after one `pause_s` later than the last found the backend still away."""
    return max(pause_s, min(2.0 * pause_s, CHECK_AWAY_S))
