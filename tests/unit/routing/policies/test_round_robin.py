import random

from routing.fleet import Availability, Backend
from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import board_of, pool_of, spread


def test_each_in_its_turn_whoever_is_away() -> None:
    how, load_table, rng = policy_instance("round_robin"), board_of(*"abcd"), random.Random(1)
    assert set(spread(how, load_table, [RoutingRequest(10)] * 40, rng=rng).values()) == {10}
    pool = pool_of("a", "b", Backend("c", "p", Availability.DOWN, "away"), "d")
    assert spread(how, load_table, [RoutingRequest(10)] * 30, rng=rng, pool=pool) == {"a": 10, "b": 10, "d": 10}


def test_one_that_warms_up_is_passed_over() -> None:
    pool = pool_of("a", "b", Backend("c", "p", Availability.UP, "", warming_since=1.0))
    went = spread(policy_instance("round_robin"), board_of(*"abc"), [RoutingRequest(10)] * 900, rng=random.Random(1), pool=pool, stay=False)
    assert 20 < went["c"] < 80
