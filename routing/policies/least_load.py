"""cost(b) = (requests on b + 1) / share(b); lower wins, ties are drawn at random.

Source: join-the-shortest-queue, e.g. `least_request` of Envoy and `leastconn` of HAProxy, whose weights in slow start divide the
same way. `share` is 1, but for a backend that has come back lately (`routing/warmth.py`). Where engines report nothing, the
requests are those of this process alone, so it is also what remains when there is no signal. Ties are drawn because an order
would send every gateway's first request of a quiet second to the same backend.
"""

from typing import Any, Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.ports import Candidates, Nothing, Policy, RoutingRequest, Scores, by_backend

TERMS: Final = ("in_flight", "share")


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Nothing, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    requests = load_table.requests
    in_flight = [requests[row] for row in candidates.rows]
    shares = candidates.shares
    if not shares:
        return Scores([count + 1.0 for count in in_flight], by_backend(in_flight, [1.0] * len(in_flight)))
    return Scores([(count + 1.0) / part for count, part in zip(in_flight, shares, strict=True)], by_backend(in_flight, shares))


POLICY: Final = Policy(score, Nothing, TERMS, blind=True, unit="requests")
