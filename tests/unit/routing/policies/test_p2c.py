import random

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import board_of, decide, spread, tell


def test_the_fullest_is_never_taken_and_the_others_are() -> None:
    load_table, rng, how = board_of(*"abcd"), random.Random(4), policy_instance("p2c")
    tell(load_table, "a", 1.0, running=50)
    went = spread(how, load_table, [RoutingRequest(10)] * 600, rng=rng, stay=False)
    assert went["a"] == 0 and min(went[one] for one in "bcd") > 150


def test_two_are_compared_and_a_single_backend_is_no_exception() -> None:
    rng, how = random.Random(4), policy_instance("p2c")
    assert decide(how, board_of("a"), RoutingRequest(10), rng=rng).backends[0].id == "a"
    went = spread(how, board_of(*"abcdefgh"), [RoutingRequest(10)] * 4000, rng=rng)
    assert max(went.values()) - min(went.values()) <= 12  # random alone would be 60 apart
