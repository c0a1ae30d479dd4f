"""cost(b) = -ln(u) / share(b), u drawn anew for each: the least of such draws falls on b with probability in proportion to share(b).

Source: uniform random choice, the floor under every comparison. The shares make a backend that warms up as rare as it should be.
"""

from math import log
from typing import Any, Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.ports import Candidates, Nothing, Policy, RoutingRequest, Scores, by_backend

TERMS: Final = ("draw",)


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Nothing, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    draws = [-log(1.0 - rng.random()) for _ in candidates.rows]
    if candidates.shares:
        draws = [draw / share for draw, share in zip(draws, candidates.shares, strict=True)]
    return Scores(draws, by_backend(draws))


POLICY: Final = Policy(score, Nothing, TERMS, blind=True)
