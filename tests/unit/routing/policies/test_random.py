import random

from routing.fleet import Availability, Backend
from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import board_of, pool_of, spread, tell


def test_draws_are_uniform_whatever_the_load() -> None:
    load_table = board_of(*"abcd")
    tell(load_table, "a", 1.0, running=100)
    went = spread(policy_instance("random"), load_table, [RoutingRequest(10)] * 4000, rng=random.Random(2))
    assert all(900 < went[one] < 1100 for one in "abcd")


def test_one_that_warms_up_is_drawn_as_its_share_says() -> None:
    pool = pool_of("a", Backend("b", "p", Availability.UP, "", warming_since=1.0))
    went = spread(policy_instance("random"), board_of(*"ab"), [RoutingRequest(10)] * 2000, rng=random.Random(2), pool=pool, stay=False)
    assert 0.08 < went["b"] / 2000 < 0.16  # its share grows from 0.1 to 0.16 of the other's meanwhile
