"""Not wanted: how much of what is free in the KV cache the request may come to fill, at most 1.

Counted with the 90th percentile of its output, because a cache that fills up throws whole sequences out; where nobody says how large
the cache is, the mean of the others.
"""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def expected_output(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    used, capacity = board.kv_tokens, board.kv_capacity
    need = demand.prompt_tokens + demand.output_tokens_p90
    shares: list[float | None] = []
    for row, matched in zip(sight.rows, sight.matched, strict=True):
        free = capacity[row] - used[row]
        shares.append(None if not capacity[row] else min(1.0, (need - matched) / free) if free > 0 else 1.0)
    known = [share for share in shares if share is not None]
    usual = sum(known) / len(known) if known else 0.0
    return [usual if share is None else share for share in shares]
