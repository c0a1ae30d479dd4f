"""Counts connections that were closed without an answer, and tells operators of them without letting strangers fill the log."""

from collections.abc import Callable
from typing import Final, Protocol

from domain.clock import Clock

TELL_EVERY_S: Final = 10.0
"""Least time between two log lines of the same reason: who refuses a flood must not write one."""


class WarnsOfPeers(Protocol):
    """A logger."""

    def warning(self, event: str, **fields: object) -> object:
        """Write one line."""
        ...


class RefusedConnections:
    """The refused connections of one worker.

    Args:
        count: called with the reason of each.
    """

    def __init__(self, count: Callable[[str], None], log: WarnsOfPeers, clock: Clock) -> None:
        self._count = count
        self._log = log
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def note(self, reason: str, peer: str, why: str) -> None:
        """Count one, and write a line unless the reason had one a moment ago.

        Args:
            peer: the address that the connection came from.
            why: a sentence for the operator.
        """
        self._count(reason)
        now = self._clock()
        untold = self._untold.get(reason, 0)
        if now - self._told_at.get(reason, float("-inf")) < TELL_EVERY_S:
            self._untold[reason] = untold + 1
            return
        self._told_at[reason] = now
        self._untold[reason] = 0
        self._log.warning("connection closed without an answer", reason=reason, peer=peer, why=why, not_logged=untold)
