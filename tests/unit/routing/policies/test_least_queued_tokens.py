import random
from collections import Counter

import pytest

from routing.choosing import choosing
from routing.ports import RoutingRequest
from tests.placing import board_of, decide, tell

HOW, RNG = choosing("least_queued_tokens"), random.Random(1)


@pytest.mark.req("ROUTERS-4")
def test_tokens_are_counted_and_not_requests() -> None:
    board = board_of("a", "b")
    board.charge("a", 100_000, 100_000, 1.0)
    for _ in range(20):
        board.charge("b", 100, 100, 1.0)
    assert decide(HOW, board, RoutingRequest(100), rng=RNG).backends[0].id == "b"


def test_requests_decide_among_equals_and_then_the_dice() -> None:
    board = board_of("a", "b", "c")
    tell(board, "a", 1.0, running=3)
    firsts = Counter(decide(HOW, board, RoutingRequest(100), rng=RNG).backends[0].id for _ in range(300))
    assert set(firsts) == {"b", "c"}
