"""Whether this process may send one more request to a backend. Pure.

The bounds apply to this process's own requests there: the cap that an operator sets (`max_in_flight`) and the concurrency limits found at
run time (`LoadTable.limit`, `LoadTable.limit_tokens`). The seconds of prompts that may wait in an engine (`LoadTable.hold_tokens`) count
the requests of sibling processes too: what waits there is served in the order in which it came, what waits here in the queue's order, and
on the backend that is the best when its turn comes. A request without room waits in the gateway's queue; a request that could never fit
does not wait.
"""

from math import inf
from typing import Final

from routing.load import Charge, LoadTable

HEADROOM: Final = 0.05
"""Share of a pool's slots that is left free for tenants with less than their share, also while there are none: three of 64 slots, and none
of fewer than 20."""
FULL: Final = "full: "
"""How a reason begins that goes away by itself once a request ends."""
NO_SLOT: Final = f"{FULL}it lacks a slot for the adapter: "
"""How a reason begins that goes away once requests for another adapter have ended: the backend has no slot to load the adapter."""


def has_no_room(load_table: LoadTable, row: int, tokens: float, part: float = 1.0, *, holds: bool = True) -> str:
    """Why the backend takes no more requests now, beginning with `FULL`; empty when it has room.

    Args:
        tokens: uncached tokens of the prompt. However long, the prompt is taken where nothing else is being computed: it would never fit
            otherwise.
        holds: whether a backend with too many seconds of unbegun prompts counts as one without room.
        part: share of each bound that this request may use, above 0; the rest is reserved for other tenants. One request always fits.
    """
    backend_id = load_table.ids[row]
    in_flight = load_table.in_flight(backend_id)
    cap = load_table.facts[row].in_flight_cap
    if cap and in_flight >= _part(cap, part):
        return f"{FULL}{in_flight} requests are in flight there, its cap{_kept(part)}"
    if in_flight >= _part(load_table.limit[row], part):
        return f"{FULL}{in_flight} requests are in flight there, it is taken to bear {load_table.limit[row]:.0f}{_kept(part)}"
    if holds and load_table.hold_s < inf and (queued := load_table.waits_there(row)) >= load_table.hold_tokens[row] * part:
        return f"{FULL}{queued} prompt tokens wait there, {queued * load_table.prefill_s_token[row]:.2f} s of work{_kept(part)}"
    if load_table.limit_tokens[row] < inf:
        queued = load_table.unbegun(backend_id)
        limit = load_table.limit_tokens[row]
        if queued and queued + tokens > limit * part:
            return f"{FULL}{queued} prompt tokens are being computed there, it is taken to bear {limit:.0f}{_kept(part)}"
    return ""


def _part(bound: float, part: float) -> float:
    return bound if part == 1.0 else max(min(bound, 1.0), bound * part)


def _kept(part: float) -> str:
    return "" if part == 1.0 else f", and {1.0 - part:.0%} of that is kept for tenants that have less there"


def room_without(load_table: LoadTable, row: int, tokens: float, *charges: Charge) -> bool:
    """Whether the backend would have room for a prompt of `tokens` uncached tokens if the requests of `charges`, whose first tokens have
    not come, were not there."""
    backend_id = load_table.ids[row]
    in_flight = load_table.in_flight(backend_id) - len(charges)
    cap = load_table.facts[row].in_flight_cap
    if (cap and in_flight >= cap) or in_flight >= load_table.limit[row]:
        return False
    removed = sum([charge.uncached_tokens for charge in charges])
    queued = load_table.unbegun(backend_id) - removed
    waiting = load_table.waits_there(row) - removed
    return (not queued or queued + tokens <= load_table.limit_tokens[row]) and (not waiting or waiting < load_table.hold_tokens[row])
