"""cost(b) = (requests on b + 1) / share(b) for two backends drawn at random; the others come after them.

Source: the power of two choices (Mitzenmacher 2001), as `power_of_two` in SMG, vLLM's router and Envoy's random least-request.
SMG compares KV usage when both are known; here both are compared by requests, the variant that needs no signal.
"""

from typing import Any, Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.ports import Candidates, Nothing, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import SPARED

TERMS: Final = ("in_flight", "drawn")


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Nothing, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    requests = load_table.requests
    rows = candidates.rows
    in_flight = [requests[row] for row in rows]
    load = [count + 1.0 for count in in_flight]
    if candidates.shares:
        load = [count / share for count, share in zip(load, candidates.shares, strict=True)]
    n = len(rows)
    drawn = [0.0] * n
    first = rng.randrange(n)
    drawn[first] = 1.0
    if n > 1:
        drawn[(first + 1 + rng.randrange(n - 1)) % n] = 1.0
    return Scores(
        [count if is_drawn else count + SPARED for count, is_drawn in zip(load, drawn, strict=True)], by_backend(in_flight, drawn)
    )


POLICY: Final = Policy(score, Nothing, TERMS, blind=True, unit="requests")
