import random
from collections import Counter

import pytest

from routing.load import BackendFacts
from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide, tell

RNG = random.Random(1)
HOW = policy_instance("weighted")


def test_the_seed_formula() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, queued_tokens=40_000, kv_usage=0.5)  # a second of queue is a half
    route = decide(HOW, load_table, RoutingRequest(6400, priority=1.0), Held(a=100), rng=RNG)
    assert [one.id for one in route.backends] == ["a", "b"]
    terms = dict(route.explanation().candidates[0].terms)
    assert {name: value for name, value in terms.items() if value} == pytest.approx(
        {"prefix": -0.45 * 6399 / 6400, "queue": 0.125, "kv": 0.1, "priority": -0.1}
    )


def test_its_known_defect_a_full_match_wins_on_a_worker_without_room() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, queued_tokens=400_000, kv_usage=0.9)
    assert decide(HOW, load_table, RoutingRequest(6400), Held(a=100), rng=RNG).backends[0].id == "a"


@pytest.mark.parametrize("priority", [-1.0, 0.0, 1.0])
def test_priority_changes_no_ranking_and_acts_against_the_floor(priority: float) -> None:
    load_table = board_of("a", "b", queued_tokens=40_000)
    tell(load_table, "b", 1.0, queued_tokens=4000)
    request = RoutingRequest(1000, priority=priority)
    assert decide(HOW, load_table, request, rng=RNG).backends[0].id == "b"
    route = decide(policy_instance("weighted", {"floor": -0.1}), load_table, request, rng=RNG)
    assert {one.id for one in route.backends} == {-1.0: set(), 0.0: {"b"}, 1.0: {"a", "b"}}[priority]
    if priority < 0:
        assert [one.reason for one in route.excluded] == ["it scores -0.123, the floor is -0.1", "it scores -0.225, the floor is -0.1"]


@pytest.mark.parametrize(("weight", "better"), [("region", {"region": "eu"}), ("price", {"price": 0.5})])
def test_weights_are_free(weight: str, better: dict[str, object]) -> None:
    load_table = board_of("a", "b")
    load_table.set_facts("a", BackendFacts(price=1.0, region="us"))
    load_table.set_facts("b", BackendFacts(**{"price": 1.0, "region": "us", **better}))
    request = RoutingRequest(1000, region="eu")
    firsts = Counter(decide(HOW, load_table, request, rng=RNG).backends[0].id for _ in range(100))
    assert set(firsts) == {"a", "b"}
    assert decide(policy_instance("weighted", {weight: 0.3}), load_table, request, rng=RNG).backends[0].id == "b"


@pytest.mark.parametrize("weight", [0.01, 0.05, 0.1, 0.2])
def test_the_own_zone_is_worth_a_queue_as_long_as_its_weight_says_and_no_longer(weight: float) -> None:
    """Off by default. A queue of s seconds costs 0.25 s / (s + 1), so a weight of w is worth s = w / (0.25 - w) seconds of queue."""
    worth_s = weight / (0.25 - weight)
    how = policy_instance("weighted", {"region": weight})
    for seconds, chosen in ((0.9 * worth_s, "here"), (1.1 * worth_s, "there")):
        load_table = board_of("here", "there")
        for name, zone in (("here", "z1"), ("there", "z2")):
            load_table.set_facts(name, BackendFacts(region=zone))
        prefill_s_token = load_table.prefill_s_token[load_table.row_of["here"]]
        tell(load_table, "here", 1.0, queued_tokens=round(seconds / prefill_s_token))
        route = decide(how, load_table, RoutingRequest(1000, region="z1"), rng=RNG)
        assert route.backends[0].id == chosen
        terms = {one.backend: dict(one.terms) for one in route.explanation().candidates}
        assert terms["here"]["region"] != terms["there"]["region"]


def test_equals_are_drawn() -> None:
    firsts = Counter(decide(HOW, board_of(*"abcd"), RoutingRequest(500), rng=RNG).backends[0].id for _ in range(2000))
    assert all(420 < firsts[one] < 580 for one in "abcd")
