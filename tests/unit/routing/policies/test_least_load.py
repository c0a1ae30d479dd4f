import random
from collections import Counter

import pytest

from routing.fleet import Availability, Backend
from routing.policy_instance import policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.schedule import place
from tests.placement import board_of, decide, pool_of, spread, tell


def test_the_fewest_requests_win_whoever_sent_them_and_ties_are_drawn() -> None:
    load_table, rng, how = board_of("a", "b", "c"), random.Random(3), policy_instance("least_load")
    tell(load_table, "b", 1.0, running=1)
    firsts = Counter(decide(how, load_table, RoutingRequest(10), rng=rng).backends[0].id for _ in range(600))
    assert set(firsts) == {"a", "c"} and min(firsts.values()) > 240
    assert decide(how, load_table, RoutingRequest(10), rng=rng).backends[-1].id == "b"


@pytest.mark.req("R43")
@pytest.mark.parametrize(("now", "least", "most"), [(100.0, 0.05, 0.14), (115.0, 0.30, 0.40), (130.0, 0.47, 0.53)])
def test_a_backend_with_an_empty_cache_starts_with_a_tenth(now: float, least: float, most: float) -> None:
    pool = pool_of("old", Backend("back", "p", Availability.UP, "", warming_since=100.0))
    load_table, rng, how = board_of("old", "back"), random.Random(5), policy_instance("least_load")
    for _ in range(1000):
        load_table.charge(place(RoutingRequest(10), pool, load_table, how, Circumstances(now), rng).backends[0].id, 10, 10, now)
    assert least < load_table.in_flight("back") / 1000 < most


def test_equals_share_equally() -> None:
    went = spread(policy_instance("least_load"), board_of(*"abcd"), [RoutingRequest(10)] * 400, rng=random.Random(1))
    assert set(went.values()) == {100}
