"""Wanted: how important the request is, from its -1 to 1; the same for every candidate.

So it can change no ranking, whatever its weight. It acts where scores are compared with something else: with the `floor` of
`weighted`, under which a backend takes nothing, so that an important request is still placed where an unimportant one is not.
"""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def tenant_priority(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    return [demand.priority] * len(sight.rows)
