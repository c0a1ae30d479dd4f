"""Decides when a child that ended unexpectedly is started again. Pure: no clock, no processes."""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.clock import Rng

FIRST_RESTART_S: Final = 0.2
"""Ceiling of the first delay; with half of it as jitter, a single crash costs 0.1 to 0.2 s."""
MAX_RESTART_S: Final = 10.0
"""Ceiling of every delay: a worker that cannot start is tried at least this often, for ever."""
STREAK_WINDOW_S: Final = 300.0
"""Ends within this window count as one streak; five minutes, so that delays of up to 10 s still add up."""
KEPT_ENDS: Final = 16
"""Ends remembered per slot; the delay reaches its ceiling after 7."""


class Restart(msgspec.Struct, frozen=True):
    """When to start a child again."""

    delay_s: float
    streak: int
    """Ends within `STREAK_WINDOW_S`, the latest included; a high number is a crash loop."""


def next_restart(ends: Sequence[float], now: float, rng: Rng) -> Restart:
    """Exponential back-off with half jitter: delay = min(0.2 s * 2^(streak - 1), 10 s) * U[0.5, 1).

    Args:
        ends: moments of unexpected ends, the latest included, on the clock of `now`.
    """
    streak = sum(now - end <= STREAK_WINDOW_S for end in ends)
    ceiling = min(FIRST_RESTART_S * 2.0 ** max(streak - 1, 0), MAX_RESTART_S)
    return Restart(ceiling * (0.5 + 0.5 * rng.random()), streak)
