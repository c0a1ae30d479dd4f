"""Scorers: single views on one decision, each a value from 0 to 1 per candidate, which `weighted` and other policies add up.

Every scorer takes the request, its candidates and the load table, and returns one column. Whether a high value counts for a candidate
("wanted") or against it ("not wanted") is said first. Where a backend reports no value, the mean of the others stands in for it.
"""

from routing.load import LoadTable
from routing.ports import Candidates, Column, RoutingRequest


def prefix_overlap(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Wanted: the share of the prompt that the backend holds, matched tokens / prompt tokens.

    A share values 90 % of 200 tokens as much as 90 % of 100,000 (routers research, finding 2); `predicted_latency` counts the tokens.
    """
    tokens = request.prompt_tokens or 1
    return [matched / tokens for matched in candidates.matched]


def queue_delay(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Not wanted: seconds of prompts that wait there, as seconds / (seconds + 1).

    The seconds are the queued tokens times the backend's own seconds per token, so that a fast backend may have the longer queue. One
    second gives 0.5, and no queue is so long that a longer one would look the same.
    """
    tokens, seconds = load_table.queue_tokens, load_table.prefill_s_token
    delays = [tokens[row] * seconds[row] for row in candidates.rows]
    return [delay / (delay + 1.0) for delay in delays]


def kv_pressure(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Not wanted: the share of the KV cache that is in use or promised, at most 1."""
    used, capacity = load_table.kv_tokens, load_table.kv_capacity
    shares = [min(1.0, used[row] / capacity[row]) if capacity[row] else None for row in candidates.rows]
    known = [share for share in shares if share is not None]
    usual = sum(known) / len(known) if known else 0.0
    return [usual if share is None else share for share in shares]


def expected_output(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Not wanted: the share of the free KV cache that the request may come to fill, at most 1.

    The need is prompt tokens + the 90th percentile of its output tokens - matched tokens, because a cache that fills up evicts whole
    sequences.
    """
    used, capacity = load_table.kv_tokens, load_table.kv_capacity
    need = request.prompt_tokens + request.output_tokens_p90
    shares: list[float | None] = []
    for row, matched in zip(candidates.rows, candidates.matched, strict=True):
        free = capacity[row] - used[row]
        shares.append(None if not capacity[row] else min(1.0, (need - matched) / free) if free > 0 else 1.0)
    known = [share for share in shares if share is not None]
    usual = sum(known) / len(known) if known else 0.0
    return [usual if share is None else share for share in shares]


def lora_residency(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Wanted: 1 where the adapter is loaded, falling with the seconds that loading it takes: 1 / (1 + seconds). 1 everywhere for the
    base model."""
    if not candidates.lora_s:
        return [1.0] * len(candidates.rows)
    return [1.0 / (1.0 + seconds) for seconds in candidates.lora_s]


def session_affinity(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Wanted: 1 for the backend that had the conversation's last turn, 0 for the others."""
    holder = candidates.sticky
    return [1.0 if at == holder else 0.0 for at in range(len(candidates.rows))]


def tenant_priority(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Wanted: the importance of the request, from -1 to 1; the same for every candidate.

    So it changes no ranking, whatever its weight. It acts where scores are compared with a threshold: with the `floor` of `weighted`,
    below which a backend takes no request, so that an important request is still placed where an unimportant one is not.
    """
    return [request.priority] * len(candidates.rows)


def region(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Wanted: 1 where the backend stands in the caller's region, 0 elsewhere; 0 everywhere when no region is configured."""
    here, facts = request.region, load_table.facts
    return [1.0 if here and facts[row].region == here else 0.0 for row in candidates.rows]


def price(request: RoutingRequest, candidates: Candidates, load_table: LoadTable) -> Column:
    """Not wanted: the price of a token there, as a share of the dearest candidate's price; 0 everywhere when no price is configured."""
    facts = load_table.facts
    prices = [facts[row].price for row in candidates.rows]
    dearest = max(prices)
    return [price / dearest for price in prices] if dearest > 0 else prices
