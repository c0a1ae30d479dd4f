"""Not wanted: what a token costs there, as a share of the dearest candidate's price; 0 everywhere when no price is configured."""

from routing.board import Board
from routing.demand import Demand
from routing.ports import Column, Sight


def price(demand: Demand, sight: Sight, board: Board) -> Column:
    """See the module."""
    facts = board.facts
    prices = [facts[row].price for row in sight.rows]
    dearest = max(prices)
    return [one / dearest for one in prices] if dearest > 0 else prices
