"""score(b) = .45 * prefix - .25 * queue - .20 * KV + .10 * priority, and five more with weight 0; the highest wins, cost = -score.

Source: the linear sum of ratios that most routers began with; here every part is a function of `routing/scorers.py`, every weight free.
Its defects are known (routers research, finding 2) and it is kept as a baseline: a full match on a worker whose queue and KV cache are
full scores .45 - .25 - .20 = 0, as much as an idle worker without the match, and a share of 200 tokens counts as much as one of
100,000. Priority is the same for all candidates, so it can never change their ranking; it acts against `floor`: a backend that
scores less takes nothing, and an important request (+.10) is placed where an unimportant one (-.10) is not.
"""

from typing import Any, Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.scorers import (
    expected_output,
    kv_pressure,
    lora_residency,
    prefix_overlap,
    price,
    queue_delay,
    region,
    session_affinity,
    tenant_priority,
)
from routing.warmth import spare

PARTS: Final = (
    ("prefix", prefix_overlap, 1.0),
    ("session", session_affinity, 1.0),
    ("queue", queue_delay, -1.0),
    ("kv", kv_pressure, -1.0),
    ("output", expected_output, -1.0),
    ("adapter", lora_residency, 1.0),
    ("priority", tenant_priority, 1.0),
    ("price", price, -1.0),
    ("region", region, 1.0),
)
"""Name of the weight, scorer, and sign: 1 when a high value counts for the backend, -1 when it counts against."""

TERMS: Final = tuple(name for name, _, _ in PARTS)


class Params(Strict):
    """Weights of the scorers; a scorer that counts against a backend is subtracted with its weight."""

    prefix: float = Field(default=0.45, ge=0, description="Weight of the share of the prompt that is cached.")
    session: float = Field(default=0.0, ge=0, description="Weight of having served the conversation's last turn.")
    queue: float = Field(default=0.25, ge=0, description="Weight of the seconds of prefill that wait in the backend's queue.")
    kv: float = Field(default=0.20, ge=0, description="Weight of the share of the KV cache in use.")
    output: float = Field(default=0.0, ge=0, description="Weight of the share of the free KV cache that the answer may fill.")
    adapter: float = Field(default=0.0, ge=0, description="Weight of having the adapter loaded.")
    priority: float = Field(default=0.10, ge=0, description="Weight of the request's priority; it counts against `floor` only.")
    price: float = Field(default=0.0, ge=0, description="Weight of the backend's price of a token.")
    region: float = Field(default=0.0, ge=0, description="Weight of being in the caller's region.")
    floor: float | None = Field(default=None, description="Backends with a lower score get no requests; null: no floor.")


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula. Terms are parts of the cost, so a scorer that counts for a backend gives a negative term."""
    nothing = [0.0] * len(candidates.rows)
    terms = []
    for name, scorer, sign in PARTS:
        weight = -sign * getattr(params, name)
        terms.append([weight * value for value in scorer(request, candidates, load_table)] if weight else nothing)
    cost = [sum(parts) for parts in zip(*terms, strict=True)]
    barred = {}
    if params.floor is not None:
        low = -params.floor
        barred = {at: f"it scores {-value:.3f}, the floor is {params.floor:g}" for at, value in enumerate(cost) if value > low}
    return Scores(spare(cost, candidates.shares, rng), by_backend(*terms), barred=barred)


POLICY: Final = Policy(score, Params, TERMS, unit="points")
