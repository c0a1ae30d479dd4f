"""Decides whether a node of the store is worth asking. Pure: the moment is handed in.

closed --5 failures in a row--> open --probe_s--> half-open --success--> closed
                                                       --failure--> open
"""

from typing import Final

FAILURES: Final = 5
"""Failures in a row that open it (reliability research, 2.3); one slow answer is no outage."""
PROBE_S: Final = 0.25
"""Between probes while it is open. No request is a probe: probing is the connection's own."""


class Breaker:
    """Counts failures of one node."""

    __slots__ = ("_failures", "_probe_at", "failures_to_open", "probe_s")

    def __init__(self, failures: int = FAILURES, probe_s: float = PROBE_S) -> None:
        self.failures_to_open, self.probe_s = failures, probe_s
        self._failures = 0
        self._probe_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether requests may ask."""
        return self._failures < self.failures_to_open

    @property
    def untroubled(self) -> bool:
        """Whether the last answer was a good one."""
        return self._failures == 0

    def succeeded(self) -> None:
        """The node answered in time."""
        self._failures = 0

    def failed(self, now: float) -> bool:
        """The node did not answer in time, or not at all. True when this very failure opened the breaker."""
        was_closed = self.closed
        self._failures += 1
        if not self.closed:
            self._probe_at = now + self.probe_s
        return was_closed and not self.closed

    def may_probe(self, now: float) -> bool:
        """Whether it is open and time for a single probe; asking again before the answer is known says no."""
        if self.closed or now < self._probe_at:
            return False
        self._probe_at = now + self.probe_s
        return True
