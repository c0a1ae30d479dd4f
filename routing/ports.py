"""What a routing policy is."""

from collections.abc import Callable, Sequence

from domain.ask import Ask
from domain.clock import Rng
from routing.fleet import Backend
from routing.load import Load

Ranked = tuple[tuple[Backend, tuple[float | int, ...]], ...]
"""Backends with the terms of their cost, best first."""

Rank = Callable[[Ask, Sequence[Backend], Load, float, Rng], Ranked]
"""(ask, eligible backends, own load, now in monotonic seconds, rng) -> all of them ranked. Pure but for the rng."""
