"""Three cases, in this order:

    imbalanced: most - least > abs and most > rel * least  ->  the fewest requests; all affinity is dropped
    matched tokens / prompt tokens > cache_threshold       ->  the longest match, then the fewest requests
    otherwise                                              ->  the fewest requests

Source: `cache_aware` of SMG (formerly the SGLang router) as its command line sets it: cache_threshold .3, abs 64, rel 1.5; its library
has .5, 32, 1.1. Requests are those on each backend. SMG's approximate tree knows one holder of a prefix only, the last; here all
holders are known. Its KV-usage switches are off by default and are left out.
"""

from typing import Any, Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import spare

TERMS: Final = ("requests", "missing_tokens", "imbalanced")

FIRST: Final = 1e5
"""A missing token outweighs any number of requests."""


class Params(Strict):
    """SMG's thresholds."""

    cache_threshold: float = Field(default=0.3, ge=0, le=1, description="Share of the prompt that must be cached for the match to decide.")
    balance_abs: float = Field(default=64, ge=0, description="Requests by which the most loaded backend may exceed the least loaded one.")
    balance_rel: float = Field(default=1.5, ge=1, description="Factor by which the most loaded backend may exceed the least loaded one.")


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's cases."""
    requests = [load_table.requests[row] for row in candidates.rows]
    most = max(requests)
    least = min(requests)
    imbalanced = most - least > params.balance_abs and most > params.balance_rel * least
    longest = max(candidates.matched)
    if not imbalanced and longest > params.cache_threshold * request.prompt_tokens:
        missing = [longest - held for held in candidates.matched]
        cost = [count + FIRST * lacks for count, lacks in zip(requests, missing, strict=True)]
    else:
        missing = [0.0] * len(requests)
        cost = requests
    return Scores(spare(cost, candidates.shares, rng), by_backend(requests, missing, [float(imbalanced)] * len(requests)))


POLICY: Final = Policy(score, Params, TERMS)
