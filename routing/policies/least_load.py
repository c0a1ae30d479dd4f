"""cost(b) = requests this gateway process has in flight on b; lower wins, ties are drawn at random.

Source: join-the-shortest-queue with local information, e.g. `least_request` of Envoy and `leastconn` of HAProxy. It needs
no signal from the engine, so it is also what remains when there is none. Ties are drawn because an order would send
every gateway's first request of a quiet second to the same backend.
"""

from collections.abc import Sequence
from typing import Final

from domain.ask import Ask
from domain.clock import Rng
from routing.fleet import Backend
from routing.load import Load
from routing.ports import Ranked

TERMS: Final = ("in_flight",)


def rank(ask: Ask, backends: Sequence[Backend], load: Load, now: float, rng: Rng) -> Ranked:
    """Rank by in-flight count; O(n log n) in the number of eligible backends."""
    in_flight, draw = load.in_flight, rng.random
    costs = [(in_flight[b.id], draw(), i) for i, b in enumerate(backends)]
    costs.sort()
    return tuple([(backends[i], (cost,)) for cost, _, i in costs])
