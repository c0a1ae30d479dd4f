"""cost(b) = (requests this gateway process has in flight on b + 1) / share(b); lower wins, ties are drawn at random.

Source: join-the-shortest-queue with local information, e.g. `least_request` of Envoy and `leastconn` of HAProxy, whose
weights in slow start divide the same way. `share` is 1, but for a backend that has come back lately (`routing/warmth.py`).
It needs no signal from the engine, so it is also what remains when there is none. Ties are drawn because an order would send
every gateway's first request of a quiet second to the same backend.
"""

from collections.abc import Sequence
from typing import Final

from domain.ask import Ask
from domain.clock import Rng
from routing.fleet import Backend
from routing.load import Load
from routing.ports import Ranked
from routing.warmth import share

TERMS: Final = ("in_flight", "share")


def rank(ask: Ask, backends: Sequence[Backend], load: Load, now: float, rng: Rng) -> Ranked:
    """Rank by cost; O(n log n) in the number of eligible backends."""
    in_flight, draw = load.in_flight, rng.random
    shares = [1.0 if b.warming_since is None else share(b.warming_since, now) for b in backends]
    costs = [((in_flight[b.id] + 1) / s, draw(), i) for i, (b, s) in enumerate(zip(backends, shares, strict=True))]
    costs.sort()
    return tuple([(backends[i], (in_flight[backends[i].id], shares[i])) for _, _, i in costs])
