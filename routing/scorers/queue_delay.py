"""Not wanted: seconds of prompts that wait there, as seconds / (seconds + 1).

The seconds are the queued tokens times the backend's own seconds per token, so that a fast backend may have the longer queue. One
second stands at a half, and no queue is so long that a longer one would look the same.
"""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def queue_delay(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    tokens, seconds = board.queue_tokens, board.prefill_s_token
    delays = [tokens[row] * seconds[row] for row in sight.rows]
    return [delay / (delay + 1.0) for delay in delays]
