"""cost(b) = prefill_load_scale * max(0, prefill blocks there + prompt blocks - credit * matched blocks) + decode blocks there
+ decode_active_request_weight * requests there; ties are drawn.

Source: NVIDIA Dynamo 1.6.1's KV router and its defaults (scale 1, credit 1, decay 0, request weight 0, temperature 0). With `decay`
d the credit is divided by 1 + d * (prefill there beyond the least loaded / prompt), so that affinity is worth less where much waits;
with `temperature` T > 0 the choice is drawn from a softmax over the costs, min-max normalised. Not modelled: tiers of host memory and
disk, taints, and the router's own queue. Decode blocks are the KV tokens in use or promised.
"""

from math import log
from typing import Any, Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import spare

TERMS: Final = ("prefill_blocks", "decode_blocks", "request_blocks")


LEAST: Final = 1e-9
"""Lower bound of temperature times span: below it, a draw from the softmax is the least cost anyway, and the reciprocal may be infinite."""


class Params(Strict):
    """Dynamo's own knobs and defaults."""

    block_tokens: int = Field(default=16, ge=1, description="Tokens of a KV block.")
    prefill_load_scale: float = Field(default=1.0, ge=0, description="Weight of blocks to prefill.")
    overlap_score_credit: float = Field(default=1.0, ge=0, description="Credit for each block that is cached on the backend.")
    decay: float = Field(
        default=0.0, ge=0, description="How fast the credit shrinks with the prefill queue beyond that of the least loaded backend."
    )
    decode_active_request_weight: float = Field(
        default=0.0, ge=0, description="Blocks that each running request of the backend counts for."
    )
    temperature: float = Field(
        default=0.0, ge=0, description="0 takes the lowest cost; above 0, the choice is drawn from a softmax over the costs."
    )


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    rows = candidates.rows
    block = params.block_tokens
    queued = load_table.queue_tokens
    used = load_table.kv_tokens
    requests = load_table.requests
    prompt = request.prompt_tokens / block
    waiting = [queued[row] / block for row in rows]
    credit = [params.overlap_score_credit * held / block for held in candidates.matched]
    if params.decay:
        least = min(waiting)
        credit = [
            blocks / (1.0 + params.decay * (queued_blocks - least) / (prompt or 1.0))
            for blocks, queued_blocks in zip(credit, waiting, strict=True)
        ]
    scale = params.prefill_load_scale
    weight = params.decode_active_request_weight
    prefill = [scale * max(0.0, queued_blocks + prompt - credited) for queued_blocks, credited in zip(waiting, credit, strict=True)]
    decode = [used[row] / block for row in rows]
    request_blocks = [weight * requests[row] for row in rows]
    cost = [
        prefill_blocks + decode_blocks + weighted_requests
        for prefill_blocks, decode_blocks, weighted_requests in zip(prefill, decode, request_blocks, strict=True)
    ]
    if params.temperature:
        low = min(cost)
        high = max(cost)
        scaled = 1.0 / max(params.temperature * (high - low or 1.0), LEAST)
        # the least of value plus Gumbel noise is a draw from the softmax
        cost = [(value - low) * scaled + log(-log(1.0 - rng.random() or 1e-300) or 1e-300) for value in cost]
    return Scores(spare(cost, candidates.shares, rng), by_backend(prefill, decode, request_blocks))


POLICY: Final = Policy(score, Params, TERMS, unit="blocks")
