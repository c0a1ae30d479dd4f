import random

import pytest

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide, tell

HOW, RNG = policy_instance("smg_cache_aware"), random.Random(1)
DEMAND = RoutingRequest(1000, block_tokens=100)


@pytest.mark.parametrize(
    ("running", "blocks", "first"),
    [(60, 4, "a"), (60, 3, "b"), (65, 4, "b")],
    ids=["the match is followed", "the match is too short", "the load is out of balance"],
)
def test_the_three_cases(running: int, blocks: int, first: str) -> None:
    load_table = board_of("a", "b", "c")
    tell(load_table, "a", 1.0, running=running)
    tell(load_table, "c", 1.0, running=1)
    assert decide(HOW, load_table, DEMAND, Held(a=blocks, c=1), rng=RNG).backends[0].id == first


def test_of_two_holders_the_emptier() -> None:
    load_table = board_of("a", "b", "c")
    tell(load_table, "a", 1.0, running=7)
    tell(load_table, "b", 1.0, running=5)
    assert [one.id for one in decide(HOW, load_table, DEMAND, Held(a=8, b=8), rng=RNG).backends] == ["b", "a", "c"]
