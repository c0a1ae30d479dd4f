"""Not wanted: the share of the KV cache that is in use or promised, at most 1; where nobody says, the mean of the others."""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def kv_pressure(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    used, capacity = board.kv_tokens, board.kv_capacity
    shares = [min(1.0, used[row] / capacity[row]) if capacity[row] else None for row in sight.rows]
    known = [share for share in shares if share is not None]
    usual = sum(known) / len(known) if known else 0.0
    return [usual if share is None else share for share in shares]
