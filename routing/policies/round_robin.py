"""cost(b) = steps from the turn to b, in the pool's order; the turn moves past whoever was chosen.

Source: round robin, the default of most HTTP balancers and of vLLM production-stack. It knows neither load nor caches. A backend
that warms up is passed over as often as its share says.
"""

from typing import Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.ports import Candidates, Nothing, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import spare

TERMS: Final = ("steps",)


class NextBackend:
    """The backend that was chosen last."""

    def __init__(self, params: Nothing) -> None:
        self.last = ""

    def placed(self, request: RoutingRequest, backend_id: str, uncached_tokens: float, now: float) -> None:
        self.last = backend_id


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Nothing, memory: NextBackend, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    rows = candidates.rows
    size = len(load_table.ids)
    after = load_table.row_of.get(memory.last, -1) + 1
    steps = [float((row - after) % size) for row in rows]
    return Scores(spare(steps, candidates.shares, rng), by_backend(steps))


POLICY: Final = Policy(score, Nothing, TERMS, NextBackend, blind=True, unit="steps")
