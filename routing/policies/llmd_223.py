"""score(b) = 2 * queue + 2 * kv + 3 * prefix; the highest wins, ties are drawn, cost = -score.

    queue  = (most - q) / (most - least) over the candidates, q requests waiting; 1 when all are equal
    kv     = 1 - share of the KV cache in use
    prefix = matched blocks / blocks of the prompt

Source: the default scorers and weights of llm-d-router (formerly the endpoint picker of the Gateway API inference extension) with
its max-score picker. What they are normalised by changes with the fleet, so one more waiting request may turn a score from 1 to 0.
"""

from typing import Any, Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.scorers import kv_pressure, prefix_overlap
from routing.warmth import spare

TERMS: Final = ("queue", "kv", "prefix")


class Params(Strict):
    """llm-d's weights."""

    queue: float = Field(default=2.0, ge=0, description="Weight of the length of the backend's queue.")
    kv: float = Field(default=2.0, ge=0, description="Weight of the free share of the KV cache.")
    prefix: float = Field(default=3.0, ge=0, description="Weight of the share of the prompt that is cached.")


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula; terms are the weighted scores, negated because lower costs win."""
    waiting = [load_table.waiting[row] for row in candidates.rows]
    most = max(waiting)
    span = max(waiting) - min(waiting)
    queue = [-params.queue * ((most - depth) / span if span else 1.0) for depth in waiting]
    free = [-params.kv * (1.0 - used) for used in kv_pressure(request, candidates, load_table)]
    prefix = [-params.prefix * share for share in prefix_overlap(request, candidates, load_table)]
    cost = [queue_cost + kv_cost + prefix_cost for queue_cost, kv_cost, prefix_cost in zip(queue, free, prefix, strict=True)]
    return Scores(spare(cost, candidates.shares, rng), by_backend(queue, free, prefix))


POLICY: Final = Policy(score, Params, TERMS, unit="points")
