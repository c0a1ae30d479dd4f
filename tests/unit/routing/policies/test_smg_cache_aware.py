import random

import pytest

from routing.choosing import choosing
from routing.ports import RoutingRequest
from tests.placing import Held, board_of, decide, tell

HOW, RNG = choosing("smg_cache_aware"), random.Random(1)
DEMAND = RoutingRequest(1000, block_tokens=100)


@pytest.mark.parametrize(
    ("running", "blocks", "first"),
    [(60, 4, "a"), (60, 3, "b"), (65, 4, "b")],
    ids=["the match is followed", "the match is too short", "the load is out of balance"],
)
def test_the_three_cases(running: int, blocks: int, first: str) -> None:
    board = board_of("a", "b", "c")
    tell(board, "a", 1.0, running=running)
    tell(board, "c", 1.0, running=1)
    assert decide(HOW, board, DEMAND, Held(a=blocks, c=1), rng=RNG).backends[0].id == first


def test_of_two_holders_the_emptier() -> None:
    board = board_of("a", "b", "c")
    tell(board, "a", 1.0, running=7)
    tell(board, "b", 1.0, running=5)
    assert [one.id for one in decide(HOW, board, DEMAND, Held(a=8, b=8), rng=RNG).backends] == ["b", "a", "c"]
