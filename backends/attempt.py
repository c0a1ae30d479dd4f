"""May a failed attempt be tried on another backend? Pure: the state of the request and of the budget in, yes or no out.

Only before the first byte of the answer, and only where another engine could do better. The budget bounds what retries can
add to an overload: at any time at most 20 % of the requests in flight, but never fewer than 3, may be retries (Envoy's
retry budget, `max(3, 0.2 * active)`), so attempts stay within 1.25 times the requests however many of them fail.
"""

from typing import Final

from domain.faults import Kind

BUDGET_RATIO: Final = 0.2
"""Share of the requests in flight that may be retries; Envoy's and Finagle's default."""

BUDGET_FLOOR: Final = 3
"""Retries always allowed at once, so that a quiet gateway can retry at all; Envoy's default."""

MAX_RETRIES: Final = 1
"""Retries per request. A second failure on another backend says more about the request or the fleet than about luck."""

LATE_SHARE: Final = 0.5
"""No retry once this share of the first-token deadline is spent; the second engine would only time out too."""

ELSEWHERE: Final = frozenset({Kind.CONNECT_FAILED, Kind.RESET_BEFORE_REPLY, Kind.ENGINE_BUSY, Kind.ENGINE_ERROR, Kind.INVALID_REPLY, Kind.ENGINE_ABORTED, Kind.BROKEN_STREAM})
"""Kinds of failure that another backend may not have. First-token time-outs are not among them: see `LATE_SHARE`."""


class RetryBudget:
    """Counts requests and retries in flight in this process."""

    __slots__ = ("active", "retrying")

    def __init__(self) -> None:
        self.active = 0
        self.retrying = 0

    def allows(self) -> bool:
        """Whether one more retry may start now."""
        return self.retrying < max(BUDGET_FLOOR, BUDGET_RATIO * self.active)


def may_retry(kind: Kind, *, retries: int, answer_begun: bool, spent_share: float, budget: RetryBudget) -> bool:
    """Whether to go on to the next candidate.

    Args:
        kind: how the attempt failed.
        retries: retries this request has had already.
        answer_begun: whether a byte of the answer (heartbeats not counted) has reached the caller.
        spent_share: time since dispatch over the first-token deadline.
    """
    return not answer_begun and retries < MAX_RETRIES and kind in ELSEWHERE and spent_share <= LATE_SHARE and budget.allows()
