"""cost(b) = (uncached tokens of the prompt + tokens queued there) * (requests there + 1); no weights.

Source: LMetric (arXiv 2603.15202): uncached prefill tokens, those already queued included, times batch size. One is added to the
batch, as Dynamo's variant of it does, or an idle worker would cost nothing however much it had to compute; whether the paper counts
requests that wait for the batch is not certain, here they count. A warming backend's product is divided by its share.
"""

from typing import Any, Final

from domain.clock import Rng
from routing.load import LoadTable
from routing.ports import Candidates, Nothing, Policy, RoutingRequest, Scores, by_backend

TERMS: Final = ("tokens", "batch")


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Nothing, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    queued = load_table.queue_tokens
    requests = load_table.requests
    rows = candidates.rows
    prompt = request.prompt_tokens
    tokens = [prompt - held + queued[row] for row, held in zip(rows, candidates.matched, strict=True)]
    batch = [requests[row] + 1.0 for row in rows]
    cost = [to_compute * batch_size for to_compute, batch_size in zip(tokens, batch, strict=True)]
    if candidates.shares:
        cost = [value / share for value, share in zip(cost, candidates.shares, strict=True)]
    return Scores(cost, by_backend(tokens, batch))


POLICY: Final = Policy(score, Nothing, TERMS, unit="tokens x requests")
