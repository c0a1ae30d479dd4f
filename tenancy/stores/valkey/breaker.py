"""The circuit breaker of one node of the counter store. Pure: the time is handed in.

closed --5 failures in a row--> open --probe_s--> half-open --success--> closed
                                                       --failure--> open
"""

from typing import Final

FAILURES: Final = 5
"""Failures in a row that open the breaker (reliability research, 2.3); one slow answer is no outage."""
PROBE_S: Final = 0.25
"""Between probes while the breaker is open. No request is a probe: the node's own task probes."""


class NodeBreaker:
    """Counts failures of one node: it opens after several in a row, and closes with the next success."""

    __slots__ = ("_failures", "_probe_at", "failures_to_open", "probe_s")

    def __init__(self, failures: int = FAILURES, probe_s: float = PROBE_S) -> None:
        self.failures_to_open = failures
        self.probe_s = probe_s
        self._failures = 0
        self._probe_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether requests may use the node."""
        return self._failures < self.failures_to_open

    @property
    def untroubled(self) -> bool:
        """Whether the last answer was a good one."""
        return self._failures == 0

    def succeeded(self) -> None:
        """Note that the node answered in time."""
        self._failures = 0

    def failed(self, now: float) -> bool:
        """Note that the node did not answer in time, or not at all. Returns whether this very failure opened the breaker."""
        was_closed = self.closed
        self._failures += 1
        if not self.closed:
            self._probe_at = now + self.probe_s
        return was_closed and not self.closed

    def may_probe(self, now: float) -> bool:
        """Whether the breaker is open and a single probe is due; False again until `probe_s` after a probe was allowed."""
        if self.closed or now < self._probe_at:
            return False
        self._probe_at = now + self.probe_s
        return True
