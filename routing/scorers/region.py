"""Wanted: 1 where the backend stands in the caller's region, 0 elsewhere; 0 everywhere when nobody said where the caller is."""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def region(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    here, facts = demand.region, board.facts
    return [1.0 if here and facts[row].region == here else 0.0 for row in sight.rows]
