"""cost(b) = uncached prompt tokens that wait there, the fewest requests first among equals; divided by the share of a warming backend.

Source: routers research (data.md, 5), which found it the honest rival without a prefix index; SMG's `least_load` without its rate and
KV terms. It sees what counting requests cannot: a pending prompt of 100,000 tokens (routers no. 4).
"""

from typing import Any, Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.ports import Candidates, Nothing, Policy, RoutingRequest, Scores, by_backend

TERMS: Final = ("queue_tokens", "requests")

REQUEST: Final = 1e-3
"""Tokens that a request counts for: less than one token, so that requests decide between equal tokens only."""


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Nothing, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    tokens = [load_table.queue_tokens[row] for row in candidates.rows]
    requests = [load_table.requests[row] for row in candidates.rows]
    cost = [queued + REQUEST * (count + 1.0) for queued, count in zip(tokens, requests, strict=True)]
    if candidates.shares:
        cost = [value / share for value, share in zip(cost, candidates.shares, strict=True)]
    return Scores(cost, by_backend(tokens, requests))


POLICY: Final = Policy(score, Nothing, TERMS, unit="tokens")
