"""Whether a failed attempt may be retried on another backend. Pure: the state of the request and of the retry budget in, yes or no out.

`may_retry` is for an answer that has not begun, `may_go_on` for one that was cut and whose pool lets another engine go on with it.

A retry is allowed only before the first byte of the answer, and only after a failure that another engine may not have. The budget bounds
the load that retries add to an overload in two ways: at any time at most 20 % of the requests in flight, but never fewer than 3, may be
retries (Envoy's retry budget), and over time each request earns a fifth of a retry (Finagle's). The first alone does not hold at low
concurrency, where 3 of 3 requests could be retries; the second alone would let a burst of retries through at once. Together: attempts <=
1.2 * requests + 10, however many of them fail.
"""

import math
from typing import Final

from domain.faults import Kind

BUDGET_RATIO: Final = 0.2
"""Share of the requests in flight that may be retries; Envoy's and Finagle's default."""

BUDGET_FLOOR: Final = 3
"""Retries always allowed at once, so that a quiet gateway can retry at all; Envoy's default."""

EARNED: Final = 0.2
"""Retries that one request earns; Finagle's default."""

SAVED: Final = 10.0
"""Retries that can be saved up, and that a fresh process has: enough for a backend's restart on a quiet gateway."""

MAX_RETRIES: Final = 1
"""Retries per request. A second failure on another backend says more about the request or the fleet than about luck."""

LATE_SHARE: Final = 0.5
"""No retry once this share of the first-token deadline is spent; the second engine would only time out too."""

ELSEWHERE: Final = frozenset(
    {
        Kind.CONNECT_FAILED,
        Kind.RESET_BEFORE_REPLY,
        Kind.ENGINE_BUSY,
        Kind.ENGINE_ERROR,
        Kind.INVALID_REPLY,
        Kind.ENGINE_ABORTED,
        Kind.WRONG_MODEL,
        Kind.BACKEND_LOST,
        Kind.MODEL_NOT_SERVED,
        Kind.BROKEN_STREAM,
        Kind.BACKEND_DRAINED,
    }
)
"""Kinds of failure that another backend may not have. First-token time-outs are not among them: see `LATE_SHARE`."""


CUT: Final = frozenset({Kind.BROKEN_STREAM, Kind.ENGINE_ABORTED, Kind.BACKEND_LOST, Kind.BACKEND_DRAINED, Kind.TOKEN_GAP_TIMEOUT})
"""Failures in the middle of an answer that say something about its engine and nothing about the answer."""

MAX_CONTINUATIONS: Final = 2
"""Engines that go on with one answer, at most."""


class RetryBudget:
    """The retry budget of this process: counts requests and retries in flight, and the retries earned.

    Args:
        processes: that share the host's budget: each has its part of what is always allowed and of what can be saved up, and earns by its
            own requests. The parts are rounded up, so that a quiet worker can retry.
    """

    __slots__ = ("_floor", "_most_saved", "active", "arrived", "retrying", "saved")

    def __init__(self, processes: int = 1) -> None:
        self._floor = math.ceil(BUDGET_FLOOR / processes)
        self._most_saved = max(1.0, SAVED / processes)
        self.active = 0
        """Requests in flight: the admission adds each request here and to `arrived`, and its end takes it off here."""
        self.arrived = 0
        """Requests that came in since `allows` looked last, each of which has earned its part of a retry."""
        self.retrying = 0
        """Retries in flight."""
        self.saved = self._most_saved
        """Retries earned and not spent yet."""

    def retry(self) -> None:
        """Count a retry that starts; `allows` must have returned True."""
        self.retrying += 1
        self.saved -= 1.0

    def allows(self) -> bool:
        """Whether one more retry may start now."""
        while self.arrived and self.saved < self._most_saved:
            self.saved += EARNED
            self.arrived -= 1
        self.arrived = 0
        return self.saved >= 1.0 and self.retrying < max(self._floor, BUDGET_RATIO * self.active)


def may_retry(kind: Kind, *, retries: int, answer_begun: bool, spent_share: float, budget: RetryBudget) -> bool:
    """Whether to go on to the next candidate.

    Args:
        kind: how the attempt failed.
        retries: retries this request has had already.
        answer_begun: whether a byte of the answer (heartbeats not counted) has reached the caller.
        spent_share: time since dispatch over the first-token deadline.
    """
    return not answer_begun and retries < MAX_RETRIES and kind in ELSEWHERE and spent_share <= LATE_SHARE and budget.allows()


def may_go_on(kind: Kind, continued: int) -> bool:
    """Whether another engine may go on with an answer that was cut, as far as its failure is concerned. The budget is that of retries.

    Args:
        kind: how the last attempt failed; one that went on may have failed before its own first byte as well.
        continued: how often another engine went on with it already.
    """
    return continued < MAX_CONTINUATIONS and (kind in CUT or (continued > 0 and kind in ELSEWHERE))
