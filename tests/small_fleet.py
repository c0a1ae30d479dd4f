"""A fleet small enough for unit tests: workers that prefill first come, first served, hold what they computed for ever, and decode.

It takes decisions with the real code and says nothing of real engines; the fleet simulator does.
"""

import random
from collections import defaultdict
from collections.abc import Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from routing.load import Charge, LoadTable
from routing.load_row import BackendFacts
from routing.policy_instance import PolicyInstance
from routing.ports import Circumstances, RoutingRequest
from routing.schedule import place
from tests.placement import Held, pool_of, tell


class Arrival(NamedTuple):
    at: float
    request: RoutingRequest
    prefix: str = ""
    """What it shares with others; empty when nothing."""
    shared: int = 0
    """Tokens of that."""


class Outcome(NamedTuple):
    at: float
    backend: str
    ttft: float
    hit: float
    """Share of its prompt that was cached."""


def run(
    how: PolicyInstance,
    arrivals: list[Arrival],
    speeds: dict[str, float],
    *,
    seed: int = 1,
    step_s: float = 0.0,
    regions: Mapping[str, str] = MappingProxyType({}),
) -> list[Outcome]:
    """What became of each arrival; `speeds` are tokens of prefill a second."""
    load_table, pool, rng = LoadTable(speeds), pool_of(*speeds), random.Random(seed)
    for one in speeds:
        tell(load_table, one, -1.0, kv_capacity=1e9)
    for one, region in regions.items():
        load_table.set_facts(one, BackendFacts(region=region))
    free_at = dict.fromkeys(speeds, 0.0)
    holds: dict[str, dict[str, int]] = defaultdict(dict)
    events: list[tuple[float, int, bool, Charge]] = []
    outcomes = []
    for number, (at, request, prefix, shared) in enumerate(arrivals):
        while events and events[0][0] <= at:
            _, _, over, charge = heappop(events)
            (load_table.release if over else load_table.begun)(charge)
        match = Held(**{one: tokens / request.block_tokens for one, tokens in holds[prefix].items()}) if prefix else Held()
        first = place(request, pool, load_table, how, Circumstances(at, match), rng).backends[0].id
        cached = holds[prefix].get(first, 0) if prefix else 0
        uncached = request.prompt_tokens - cached
        if prefix:
            holds[prefix][first] = max(cached, shared)
        charge = load_table.charge(first, uncached, uncached + request.output_tokens, at)
        if how.memory is not None:
            how.memory.placed(request, first, uncached, at)
        free_at[first] = begun_at = max(free_at[first], at) + uncached / speeds[first]
        heappush(events, (begun_at, 2 * number, False, charge))
        heappush(events, (begun_at + request.output_tokens * step_s, 2 * number + 1, True, charge))
        outcomes.append(Outcome(at, first, begun_at - at, cached / request.prompt_tokens))
    return outcomes


def poisson(rate: float, seconds: float, request: RoutingRequest, *, seed: int = 7, prefix: str = "", shared: int = 0) -> list[Arrival]:
    """Arrivals of one kind of request, `rate` a second."""
    rng, at, arrivals = random.Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        arrivals.append(Arrival(at, request, prefix, shared))
    return arrivals
