import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import pytest

from domain.strict import Strict
from routing.fleet import Availability, Backend
from routing.policy_instance import Choice, policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.registry import POLICIES
from routing.schedule import Route, place
from tests.placement import Held, board_of, decide, pool_of, spread, tell

IGNORE_LOAD = {"round_robin", "random"}
LOOK_AT_LOAD = sorted(POLICIES.keys() - IGNORE_LOAD)
EVERY = pytest.mark.parametrize("name", sorted(POLICIES))


@EVERY
def test_equals_are_treated_equally(name: str) -> None:
    load_table, rng = board_of(*"abcd"), random.Random(7)
    firsts = Counter(decide(policy_instance(name), load_table, RoutingRequest(3000), rng=rng).backends[0].id for _ in range(1200))
    if name == "round_robin":
        assert firsts == {"a": 1200}  # nothing was placed, so the turn did not move
    else:
        assert all(230 < firsts[one] < 370 for one in "abcd")


@EVERY
def test_every_backend_is_ranked_once_with_finite_terms_whatever_the_board_says(name: str) -> None:
    rng, how = random.Random(3), policy_instance(name)
    for _ in range(60):
        load_table, ids = board_of(), [f"b{at}" for at in range(rng.randrange(1, 9))]
        for one in ids:
            load_table.add(one)
            if rng.random() < 0.8:
                told = {"running": rng.randrange(300), "waiting": rng.randrange(50), "queued_tokens": rng.randrange(10**6)}
                tell(load_table, one, 1.0, kv_usage=rng.random(), kv_capacity=rng.choice([0, 100_000, 500_000]), **told)
        match = Held(common=rng.randrange(3), **{one: rng.randrange(200) for one in ids if rng.random() < 0.5})
        route = decide(
            how, load_table, RoutingRequest(rng.choice([0, 1, 17, 9000]), session=rng.randrange(4), tenant="t"), match, rng=rng, holder="b1"
        )
        assert sorted(one.id for one in (*route.backends, *route.excluded)) == ids and route.backends
        assert all(isfinite(value) for one in route.explanation().candidates for _, value in one.terms)
        assert len(route.matched) == len(route.backends)
        if how.memory is not None:
            how.memory.placed(RoutingRequest(9000, tenant="t"), route.backends[0].id, 100, 1.0)


@EVERY
def test_the_same_dice_give_the_same_route(name: str) -> None:
    load_table = board_of(*"abcdef")
    routes = [decide(policy_instance(name), load_table, RoutingRequest(3000, session=5), Held(a=4), rng=random.Random(9)) for _ in range(2)]
    assert routes[0] == routes[1]


@pytest.mark.req("ROUTERS-5")
@pytest.mark.parametrize("name", LOOK_AT_LOAD)
def test_a_burst_on_frozen_metrics_is_spread(name: str) -> None:
    load_table = board_of(*"abcdefgh", at=-10.0)
    for at, one in enumerate(load_table.ids):
        tell(load_table, one, -9.0, running=20 + at % 2, queued_tokens=100 * at)
    load_table.stale(1.0, 2.0)
    demands = [RoutingRequest(1000, output_tokens=200, tenant="t", session=at + 1 if name == "session_ring" else 0) for at in range(200)]
    went = spread(policy_instance(name), load_table, demands, rng=random.Random(5))
    assert max(went.values()) <= 1.5 * 200 / 8


@pytest.mark.req("ROUTERS-6")
@pytest.mark.parametrize("name", LOOK_AT_LOAD)
def test_a_backend_that_lost_a_series_gets_no_more_than_others(name: str) -> None:
    load_table = board_of(*"abcd")
    for one in "abc":
        tell(load_table, one, 1.0, running=30, waiting=5, queued_tokens=20_000, kv_usage=0.5)
    load_table.report("d", running=None, waiting=0, queued_tokens=None, kv_usage=None, kv_capacity=400_000, read_at=1.0, asked_at=1.0)
    demands = [RoutingRequest(1000, output_tokens=200, tenant="t", session=at + 1 if name == "session_ring" else 0) for at in range(100)]
    assert spread(policy_instance(name), load_table, demands, rng=random.Random(5))["d"] <= 35


@pytest.mark.req("R43")
@EVERY
def test_a_backend_with_an_empty_cache_is_spared(name: str) -> None:
    pool = pool_of("a", "b", "c", Backend("d", "p", Availability.UP, "", warming_since=1.0))
    demands = [RoutingRequest(2000, output_tokens=100, tenant="t", session=at + 1 if name == "session_ring" else 0) for at in range(200)]
    went = spread(policy_instance(name), board_of(*"abcd"), demands, rng=random.Random(2), pool=pool)
    assert went["d"] <= 25  # a quarter would be 50


def test_every_policy_names_its_terms_and_has_defaults() -> None:
    assert all(policy.terms and policy.params() for policy in POLICIES.values())


DOCS = Path(__file__).parents[3] / "docs" / "explanation" / "routing.md"


def rows(name: str, params: type[Strict]) -> list[str]:
    """How docs/explanation/routing.md shows these parameters."""
    fields = params.model_fields.items()
    return [f"| `{name}` | `{field}` | {'none' if one.default is None else one.default} | {one.description} |" for field, one in fields]


@pytest.mark.req("ROUTERS-27")
@pytest.mark.parametrize(("name", "params"), [*((name, one.params) for name, one in POLICIES.items()), ("all", Choice)])
def test_parameters_and_defaults_are_documented_as_they_are(name: str, params: type[Strict]) -> None:
    text = DOCS.read_text()
    assert [row for row in rows(name, params) if row not in text] == []


def decision_among(backends: int, *, alike: bool) -> Callable[[], object]:
    """The default policy's decision in a busy pool, a third of which holds some of the prompt: all but one of them the same beginning, or
    each another part."""
    load_table, rng, how = board_of(*(f"b{at}" for at in range(backends))), random.Random(1), policy_instance("predicted_latency")
    for one in load_table.ids:
        tell(load_table, one, 1.0, running=rng.randrange(80), queued_tokens=rng.randrange(20_000), kv_usage=rng.random() * 0.9)
    pool, request = pool_of(*load_table.ids), RoutingRequest(4096, session=7)
    match = Held(**{one: (50 if one == "b9" else 10) if alike else rng.randrange(64) for one in load_table.ids[::3]})
    return lambda: place(request, pool, load_table, how, Circumstances(1.0, match, holder="b3"), rng)


class Cost(NamedTuple):
    """What a decision costs in Python, counted: it is the same on every machine."""

    functions: int
    builtins: int
    scored: int
    more_bytes: int


def cost_of(backends: int, *, alike: bool) -> Cost:
    decided = decision_among(backends, alike=alike)
    route = decided()
    assert isinstance(route, Route)
    events = Counter[str]()
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _what: events.update((event,)))
    decided()
    sys.setprofile(before)
    tracemalloc.start()
    decided()
    more_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Cost(events["call"], events["c_call"], len(route.ranked), more_bytes)


@pytest.mark.req("ROUTERS-23")
def test_a_decision_costs_the_same_in_a_pool_of_16_and_of_1000() -> None:
    costs = {backends: cost_of(backends, alike=True) for backends in (16, 64, 1000)}
    assert max(cost.functions for cost in costs.values()) <= 60
    assert max(cost.builtins for cost in costs.values()) <= 300, "appends to the columns of the terms, of the few that are scored"
    assert max(cost.scored for cost in costs.values()) <= 20
    assert costs[1000].more_bytes <= 24_000, "a decision's own columns; the state of a backend is above a kilobyte"


@pytest.mark.req("ROUTERS-23")
def test_a_decision_costs_the_same_in_large_pools_where_each_holder_holds_another_part() -> None:
    costs = {backends: cost_of(backends, alike=False) for backends in (256, 1000)}
    assert max(cost.functions for cost in costs.values()) <= 100
    assert max(cost.builtins for cost in costs.values()) <= 1_300
    assert max(cost.scored for cost in costs.values()) <= 100
    assert costs[1000].more_bytes <= 96_000


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dynamo_cost", {"temperature": 5e-324}),
        ("d2lpm", {"quantum": 1, "output_weight": 1000}),
        ("session_ring", {"bound": 1e308}),
        ("preble_e2", {"imbalance": 1e308, "busy": 0}),
    ],
)
def test_extreme_parameters_place_what_is_extreme(name: str, params: dict[str, float]) -> None:
    load_table, how, rng = board_of(*"abc"), policy_instance(name, params), random.Random(1)
    for at, (tokens, output) in enumerate([(0, 0), (1, 10**15), (1000, 1)] * 3):
        request = RoutingRequest(tokens, output_tokens=output, output_tokens_p90=output, tenant="t", session=at)
        first = decide(how, load_table, request, Held(a=5), rng=rng).backends[0].id
        if how.memory is not None:
            how.memory.placed(request, first, tokens, float(at))


@pytest.mark.parametrize("params", [{"quantum": 1e-320}, {"quantum": 1e308}, {"output_weight": 1e300}])
def test_deficits_that_no_float_can_count_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"d2lpm|Params"):
        policy_instance("d2lpm", params)
