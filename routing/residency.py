"""LoRA affinity for policies whose costs are not seconds: backends that have the request's adapter are ranked first, within a bound.

Loading an adapter on another backend makes the first request wait, and may evict another adapter. So a backend that has the adapter is
preferred until it has `SPREAD` more requests than the backend that the policy would take; then the other backends are used, and load
the adapter. Within both groups the policy's order stands. Policies in seconds do not need this: the seconds of a load are one of
their terms. Pure.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from routing.load import LoadTable
from routing.schedule import Route

SPREAD: Final = 8
"""Requests. Eight more sequences in an 8B model's batch make its steps 2 % longer (`backends/simengine/settings.py`), while a
load keeps a request waiting for as long as a second of decoding; so it is not worth a load to spread less than this."""

TERM: Final = "adapter_absent"
"""Name of the term in explanations: 0 where the adapter is loaded, being loaded or waited for, 1 elsewhere."""


def with_adapter(route: Route, there: Collection[str], load_table: LoadTable) -> Route:
    """The route with the same backends, reordered so that those with the adapter come first.

    Args:
        there: ids of the backends that have the adapter, are loading it, or have requests that wait for it.
    """
    if not route.ranked:
        return route
    requests = load_table.requests
    row_of = load_table.row_of
    most = requests[row_of[route.ranked[0][0].id]] + SPREAD
    absent = [0 if backend.id in there else 1 for backend, _ in route.ranked]

    def later(at: int) -> bool:
        backend = route.ranked[at][0]
        # a backend in slow start is not preferred, whatever adapters it has
        return absent[at] == 1 or backend.warming_since is not None or requests[row_of[backend.id]] > most

    order = sorted(range(len(absent)), key=later)  # stable: the policy's order stands
    return msgspec.structs.replace(
        route,
        ranked=tuple((route.ranked[at][0], (*route.ranked[at][1], absent[at])) for at in order),
        extra=(*route.extra, TERM),
        costs=tuple(route.costs[at] for at in order),
        matched=tuple(route.matched[at] for at in order),
        waiting=tuple(route.waiting[at] for at in order) if route.waiting else (),
    )
