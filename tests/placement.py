"""Pools, load tables and matches for tests of routing decisions."""

import random
from collections import Counter
from collections.abc import Mapping

from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import LoadTable
from routing.policy_instance import PolicyInstance
from routing.ports import UNMATCHED, Circumstances, Match, RoutingRequest
from routing.schedule import Route, place


class Held:
    """An index's answer, made by hand: blocks by backend id."""

    def __init__(self, common: float = 0.0, **blocks: float) -> None:
        self.common = common
        self.blocks: Mapping[str, float] = blocks


def pool_of(*backends: str | Backend) -> Pool:
    """A pool of these; an id stands for a backend that is up."""
    members = tuple(Backend(one, "p", Availability.UP, "") if isinstance(one, str) else one for one in backends)
    return Fleet({"p": Pool("p", "m", "1", "vllm", members)}).pools["p"]


def board_of(*ids: str, at: float = 0.0, **same: float) -> LoadTable:
    """A load table in which each of these has just reported to be idle, or these values."""
    load_table = LoadTable(ids)
    for one in ids:
        tell(load_table, one, at, **same)
    return load_table


def tell(load_table: LoadTable, backend_id: str, at: float = 0.0, **values: float) -> None:
    """A report; what is not given is zero, of a cache of 400,000 tokens."""
    whole = {"running": 0.0, "waiting": 0.0, "queued_tokens": 0.0, "kv_usage": 0.0, "kv_capacity": 400_000.0, **values}
    load_table.report(backend_id, **whole, read_at=at, asked_at=at)


def decide(
    how: PolicyInstance,
    load_table: LoadTable,
    request: RoutingRequest,
    match: Match = UNMATCHED,
    *,
    rng: random.Random,
    now: float = 1.0,
    holder: str = "",
) -> Route:
    """One decision over everyone on the board."""
    return place(request, pool_of(*load_table.ids), load_table, how, Circumstances(now, match, holder=holder), rng)


def spread(
    how: PolicyInstance,
    load_table: LoadTable,
    demands: list[RoutingRequest],
    match: Match = UNMATCHED,
    *,
    rng: random.Random,
    pool: Pool | None = None,
    stay: bool = True,
) -> Counter[str]:
    """Where these go one after the other; they stay there, or are over at once."""
    pool = pool or pool_of(*load_table.ids)
    went: Counter[str] = Counter()
    for at, request in enumerate(demands):
        now = 1.0 + at * 1e-3
        route = place(request, pool, load_table, how, Circumstances(now, match), rng)
        first = route.backends[0].id
        went[first] += 1
        uncached = request.prompt_tokens - route.matched[0]
        charge = load_table.charge(first, uncached, uncached + request.output_tokens, now)
        if how.memory is not None:
            how.memory.placed(request, first, uncached, now)
        if not stay:
            load_table.release(charge)
    return went
