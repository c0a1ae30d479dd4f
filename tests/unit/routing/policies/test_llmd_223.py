import random

import pytest

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide, tell

HOW, RNG = policy_instance("llmd_223"), random.Random(1)


def test_queue_cache_and_prefix_by_two_two_and_three() -> None:
    load_table = board_of("a", "b", "c")
    tell(load_table, "a", 1.0, waiting=4, kv_usage=0.5)
    tell(load_table, "b", 1.0, waiting=1, kv_usage=0.25)
    route = decide(HOW, load_table, RoutingRequest(1000, block_tokens=100), Held(a=5), rng=RNG)
    found = {one.id: terms for one, terms in route.ranked}
    assert found["a"] == pytest.approx((0, -1, -1.5))
    assert found["b"] == pytest.approx((-1.5, -1.5, 0))
    assert [one.id for one in route.backends] == ["c", "b", "a"]


def test_a_match_wins_over_an_emptier_cache_only_by_so_much() -> None:
    load_table = board_of("a", "b")
    for usage, first in ((0.6, "a"), (0.9, "b")):
        tell(load_table, "a", usage, kv_usage=usage)
        assert decide(HOW, load_table, RoutingRequest(1000, block_tokens=100), Held(a=5), rng=RNG).backends[0].id == first
