"""Slow start: how much of its usual load a backend gets after it came back with an empty cache."""

from collections.abc import Sequence
from typing import Final

from domain.clock import Rng

SLOW_START_S: Final = 30.0
"""Seconds until it gets its whole share."""
SLOW_START_FROM: Final = 0.1
"""From a tenth of the load of others to all of it in half a minute, in a straight line: an empty prefix cache makes every
request dearer, and a burst of them would queue (reliability research, 2.2; HAProxy's `slowstart` is the same line from zero)."""


def share(warming_since: float | None, now: float) -> float:
    """The share of its usual load that this backend may take, 0.1 to 1."""
    if warming_since is None:
        return 1.0
    return min(1.0, SLOW_START_FROM + (1.0 - SLOW_START_FROM) * max(0.0, now - warming_since) / SLOW_START_S)


SPARED: Final = 1e12
"""Added to the cost of a backend that is left out of one decision; it is tried only when all others fail."""


def spare(costs: Sequence[float], shares: Sequence[float], rng: Rng) -> Sequence[float]:
    """Leave each backend out of this decision with probability 1 - share: for policies whose costs cannot be divided by it."""
    if not shares:
        return costs
    return [cost if share >= 1.0 or rng.random() < share else cost + SPARED for cost, share in zip(costs, shares, strict=True)]
