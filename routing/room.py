"""Whether this process may send one more request to a backend. Pure.

What bounds it is what it has there itself: the cap that an operator sets (`max_in_flight`), and the limits found while it runs
(`Board.limit`, `Board.limit_tokens`). What waits for room waits in the gateway, in an order of its own; what has no room because it
could never have any does not wait.
"""

from math import inf
from typing import Final

from routing.board import Board, Charge

FULL: Final = "full: "
"""How reasons begin that go away by themselves once something ends."""


def full(board: Board, row: int, tokens: float, part: float = 1.0) -> str:
    """Why a backend takes no more now, beginning with `FULL`; empty when it does.

    Args:
        tokens: of the prompt that it would have to compute. However long, it is taken where nothing else is being computed: it would
            never fit otherwise.
        part: of each bound that is for this request, above 0; the rest is kept for others. One request is always within it.
    """
    backend_id = board.ids[row]
    there, cap = board.in_flight(backend_id), board.facts[row].in_flight_cap
    if cap and there >= _part(cap, part):
        return f"{FULL}{there} requests are in flight there, its cap{_kept(part)}"
    if there >= _part(board.limit[row], part):
        return f"{FULL}{there} requests are in flight there, it is taken to bear {board.limit[row]:.0f}{_kept(part)}"
    if board.limit_tokens[row] < inf:
        queued = board.unbegun(backend_id)
        if queued and queued + tokens > board.limit_tokens[row] * part:
            return f"{FULL}{queued} prompt tokens are being computed there, it is taken to bear {board.limit_tokens[row]:.0f}{_kept(part)}"
    return ""


def _part(bound: float, part: float) -> float:
    return bound if part == 1.0 else max(min(bound, 1.0), bound * part)


def _kept(part: float) -> str:
    return "" if part == 1.0 else f", and {1.0 - part:.0%} of that is kept for tenants that have less there"


def room_without(board: Board, row: int, tokens: float, charge: Charge) -> bool:
    """Whether a backend would take such a prompt if this request of ours, whose first token has not come, were not there."""
    backend_id = board.ids[row]
    there, cap = board.in_flight(backend_id) - 1, board.facts[row].in_flight_cap
    if (cap and there >= cap) or there >= board.limit[row]:
        return False
    queued = board.unbegun(backend_id) - charge.uncached_tokens
    return not queued or queued + tokens <= board.limit_tokens[row]
