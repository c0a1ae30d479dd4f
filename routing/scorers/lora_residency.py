"""Wanted: 1 where the adapter is loaded, down to 0 as its load takes long: 1 / (1 + seconds). 1 everywhere for the base model."""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def lora_residency(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    if not sight.lora_s:
        return [1.0] * len(sight.rows)
    return [1.0 / (1.0 + seconds) for seconds in sight.lora_s]
