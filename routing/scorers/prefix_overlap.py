"""Wanted: the share of the prompt that the backend holds, matched tokens / prompt tokens.

A share values 90 % of 200 tokens as much as 90 % of 100,000 (routers research, finding 2); `predicted_latency` counts the tokens.
"""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def prefix_overlap(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    tokens = demand.prompt_tokens or 1
    return [matched / tokens for matched in sight.matched]
