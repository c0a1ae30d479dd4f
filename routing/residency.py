"""A Route for a model that is answered with an adapter: who has it comes first, within bounds, and who cannot is out.

Loading an adapter where it is not costs the first request a wait and another adapter perhaps its place, so a backend that
has it is preferred until it carries `SPREAD` more of our requests than the backend the policy would take; then the others
get their turn, and with it the adapter. Within both groups the policy's order stands. Pure.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from routing.load import Load
from routing.schedule import Route

SPREAD: Final = 8
"""Requests. Eight more sequences in an 8B model's batch make its steps 2 % longer (`backends/simengine/presets.py`), while a
load keeps a request waiting for as long as a second of decoding; so it is not worth a load to spread less than this."""

TERM: Final = "adapter_absent"
"""What explanations call it: 0 where the adapter is loaded or being loaded, 1 elsewhere."""


def with_adapter(route: Route, there: Collection[str], unable: Mapping[str, str], load: Load) -> Route:
    """The same backends, ordered for the adapter.

    Args:
        there: ids of backends that have it or are getting it.
        unable: why others cannot get it, by id; they are excluded with that reason.
    """
    able = [(backend, (*terms, 0 if backend.id in there else 1)) for backend, terms in route.ranked if backend.id not in unable]
    if able:
        most = load.in_flight[able[0][0].id] + SPREAD
        # stable: the policy's order stands; and one that has come back lately is spared, whatever it has
        able.sort(key=lambda one: one[1][-1] == 1 or one[0].warming_since is not None or load.in_flight[one[0].id] > most)
    out = [msgspec.structs.replace(backend, reason=unable[backend.id]) for backend, _ in route.ranked if backend.id in unable]
    return Route(route.policy, tuple(able), (*route.excluded, *out), (*route.extra, TERM))
