"""A Route for a model that is answered with an adapter, of a policy that does not reckon in seconds: who has it comes first, within bounds.

Loading an adapter where it is not costs the first request a wait and another adapter perhaps its place, so a backend that
has it is preferred until it carries `SPREAD` more requests than the backend the policy would take; then the others
get their turn, and with it the adapter. Within both groups the policy's order stands. Policies in seconds do not need this: the
load's seconds are one of their terms. Pure.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from routing.board import Board
from routing.schedule import Route

SPREAD: Final = 8
"""Requests. Eight more sequences in an 8B model's batch make its steps 2 % longer (`backends/simengine/presets.py`), while a
load keeps a request waiting for as long as a second of decoding; so it is not worth a load to spread less than this."""

TERM: Final = "adapter_absent"
"""What explanations call it: 0 where the adapter is loaded or being loaded, 1 elsewhere."""


def with_adapter(route: Route, there: Collection[str], board: Board) -> Route:
    """The same backends, ordered for the adapter.

    Args:
        there: ids of backends that have it or are getting it.
    """
    if not route.ranked:
        return route
    requests, row_of = board.requests, board.row_of
    most = requests[row_of[route.ranked[0][0].id]] + SPREAD
    absent = [0 if backend.id in there else 1 for backend, _ in route.ranked]

    def later(at: int) -> bool:
        backend = route.ranked[at][0]
        # one that has come back lately is spared, whatever it has
        return absent[at] == 1 or backend.warming_since is not None or requests[row_of[backend.id]] > most

    order = sorted(range(len(absent)), key=later)  # stable: the policy's order stands
    return msgspec.structs.replace(
        route,
        ranked=tuple((route.ranked[at][0], (*route.ranked[at][1], absent[at])) for at in order),
        extra=(*route.extra, TERM),
        costs=tuple(route.costs[at] for at in order),
        matched=tuple(route.matched[at] for at in order),
    )
