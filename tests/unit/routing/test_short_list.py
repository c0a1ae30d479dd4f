import random

import pytest

from routing import schedule
from routing.fleet import Availability, Backend, Pool
from routing.load import BackendFacts, LoadTable
from routing.policy_instance import Choice, PolicyInstance, policy_instance
from routing.ports import Adapters, Circumstances, RoutingRequest
from routing.rates import PRIORS, Rates
from routing.registry import POLICIES
from routing.schedule import Route, place
from routing.tie_break import margin_of
from tests.placement import Held, pool_of, tell

CHOICE = Choice(explore_share=0.0)
"""Exploring would draw other numbers from the dice."""


def busy(dice: random.Random, backends: int, *, alike: bool) -> LoadTable:
    """A load table with reports, requests in flight, and speeds that are learned or all as they were configured."""
    load_table = LoadTable()
    for at in range(backends):
        rates = [rate * (1.0 if alike else dice.uniform(0.7, 1.5)) for rate in PRIORS["h100-8b"]]
        load_table.add(f"b{at}", Rates(*rates), BackendFacts(step_tokens=2048 if alike else dice.choice([512, 2048, 8192])))
        queued = dice.choice([0, 0, dice.randrange(30_000)])
        tell(load_table, f"b{at}", 1.0, running=dice.randrange(90), queued_tokens=queued, waiting=queued // 900, kv_usage=dice.random())
    load_table.reuse.share = dice.choice([0.0, dice.random()])
    return load_table


def question(dice: random.Random) -> RoutingRequest:
    return RoutingRequest(
        dice.choice([1, 40, 900, 4096, 30_000]),
        output_tokens=dice.choice([1, 100, 4000]),
        session=dice.randrange(2),
        tpot_slo_s=dice.choice([None, None, 0.0085]),
    )


def match(dice: random.Random, ids: list[str]) -> Held:
    share = dice.choice([0.0, 0.1, 0.5, 1.0])
    return Held(**{one: dice.choice([2, 2, 2, dice.randrange(1, 60)]) for one in ids if dice.random() < share})


def circumstances(dice: random.Random, load_table: LoadTable) -> Circumstances:
    """Backends are excluded only where memory has no price: its scarcity is a mean over the eligible backends where everybody is scored,
    and over those that are up in a short list."""
    ids, some = load_table.ids, not load_table.reuse.share
    there, unable = dice.sample(ids, 5), {one: "no room" for one in dice.sample(ids, 3 * some)}
    adapters = dice.choice([None, None, Adapters(there, unable, 0.8)])
    shut = {one: "it fails" for one in dice.sample(ids, dice.choice([0, 0, 5]) * some)}
    return Circumstances(1.0, match(dice, ids), dice.choice(["", dice.choice(ids)]), adapters, shut)


def everybody(
    patch: pytest.MonkeyPatch, request: RoutingRequest, load_table: LoadTable, how: PolicyInstance, given: Circumstances
) -> Route:
    """The decision of a pool in which nobody is left out."""
    with patch.context() as here:
        here.setattr(schedule, "short_list", lambda *_: None)
        return place(request, pool_of(*load_table.ids), load_table, how, given, random.Random(1))


@pytest.mark.req("ROUTERS-23")
@pytest.mark.parametrize("alike", [True, False])
def test_the_choice_from_a_short_list_is_the_choice_from_the_whole_pool(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost among all is the least, or within the margin in which costs count as equal."""
    dice, short = random.Random(11), 0
    for _ in range(60):
        load_table = busy(dice, dice.choice([16, 40, 90]), alike=alike)
        pool, params = pool_of(*load_table.ids), {"ttft": dice.choice([1.0, 0.3]), "decode": dice.choice([0.1, 1.0])}
        how = policy_instance("predicted_latency", params, CHOICE)
        for _ in range(6):
            request, lookups = question(dice), circumstances(dice, load_table)
            route = place(request, pool, load_table, how, lookups, dice)
            whole = everybody(monkeypatch, request, load_table, how, lookups)
            cost = dict(zip([one.id for one in whole.backends], whole.costs, strict=True))
            chosen, best = route.backends[0].id, min(whole.costs)
            short += route.others > 0
            if route.others and route.why != "session" and whole.why != "session":
                assert cost[chosen] <= best + margin_of(best, CHOICE) + 1e-9
            if route.others:
                assert len(route.backends) + len(route.excluded) + route.others == len(pool.up)
            load_table.charge(chosen, request.prompt_tokens - route.matched[0], request.prompt_tokens, 2.0)
    assert short > 50


def idle(backends: int) -> LoadTable:
    load_table = LoadTable([f"b{at}" for at in range(backends)])
    for one in load_table.ids:
        tell(load_table, one, 1.0)
    return load_table


def route_of(load_table: LoadTable, pool: Pool, held: Held, name: str = "predicted_latency") -> Route:
    return place(RoutingRequest(4096), pool, load_table, policy_instance(name, None, CHOICE), Circumstances(1.0, held), random.Random(4))


def test_a_large_pool_is_not_scored_whole_and_says_how_many_were_left_out() -> None:
    load_table = idle(100)
    route = route_of(load_table, pool_of(*load_table.ids), Held(b77=40, b3=10))
    assert route.backends[0].id == "b77"
    assert len(route.backends) + route.others == 100
    assert len(route.backends) <= 6


def test_many_that_hold_the_same_beginning_are_not_scored_for_it() -> None:
    load_table = idle(100)
    route = route_of(load_table, pool_of(*load_table.ids), Held(**{one: 30 if one == "b9" else 8 for one in load_table.ids}))
    assert route.backends[0].id == "b9"
    assert route.others >= 90


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"predicted_latency"}))
def test_other_policies_score_everybody(name: str) -> None:
    load_table = idle(30)
    assert route_of(load_table, pool_of(*load_table.ids), Held(), name).others == 0


def test_everybody_is_scored_in_a_small_pool_and_while_a_backend_warms_up() -> None:
    small, large = idle(8), idle(30)
    warming = pool_of(*large.ids[1:], Backend("b0", "p", Availability.UP, "", warming_since=0.0))
    assert route_of(small, pool_of(*small.ids), Held()).others == 0
    assert route_of(large, warming, Held()).others == 0


def test_gateways_that_see_the_same_idle_pool_do_not_all_begin_with_the_same_backend() -> None:
    load_table, how = idle(64), policy_instance("predicted_latency", None, CHOICE)
    pool = pool_of(*load_table.ids)
    firsts = [place(RoutingRequest(900), pool, load_table, how, Circumstances(1.0), random.Random(at)).backends[0].id for at in range(200)]
    assert len(set(firsts)) > 50


def test_a_request_that_explores_may_go_to_any_backend_that_costs_little_more() -> None:
    load_table, how = idle(64), policy_instance("predicted_latency", None, Choice(explore_share=0.2))
    pool, dice = pool_of(*load_table.ids), random.Random(3)
    routes = [place(RoutingRequest(900), pool, load_table, how, Circumstances(1.0), dice) for _ in range(600)]
    explored = [route.backends[0].id for route in routes if route.why == "explored"]
    assert 80 < len(explored) < 160
    assert len(set(explored)) > 40


def test_where_all_of_the_short_list_are_out_the_whole_pool_is_asked() -> None:
    load_table = idle(30)
    for one in load_table.ids[:29]:
        load_table.set_facts(one, BackendFacts(context_tokens=100))
        tell(load_table, one, 2.0)
    tell(load_table, "b29", 2.0, running=200, queued_tokens=90_000)
    route = route_of(load_table, pool_of(*load_table.ids), Held())
    assert [one.id for one in route.backends] == ["b29"]
    assert len(route.excluded) == 29
