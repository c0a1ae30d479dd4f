import random
from collections import Counter

import pytest

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import board_of, decide, tell

HOW, RNG = policy_instance("least_queued_tokens"), random.Random(1)


@pytest.mark.req("ROUTERS-4")
def test_tokens_are_counted_and_not_requests() -> None:
    load_table = board_of("a", "b")
    load_table.charge("a", 100_000, 100_000, 1.0)
    for _ in range(20):
        load_table.charge("b", 100, 100, 1.0)
    assert decide(HOW, load_table, RoutingRequest(100), rng=RNG).backends[0].id == "b"


def test_requests_decide_among_equals_and_then_the_dice() -> None:
    load_table = board_of("a", "b", "c")
    tell(load_table, "a", 1.0, running=3)
    firsts = Counter(decide(HOW, load_table, RoutingRequest(100), rng=RNG).backends[0].id for _ in range(300))
    assert set(firsts) == {"b", "c"}
