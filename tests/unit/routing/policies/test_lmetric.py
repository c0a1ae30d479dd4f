import random

from routing.choosing import choosing
from routing.ports import RoutingRequest
from tests.placing import Held, board_of, decide, tell

HOW, RNG = choosing("lmetric"), random.Random(1)


def test_a_match_counts_as_much_as_the_batch_it_would_disturb() -> None:
    board = board_of("a", "b")
    for running, first in ((8, "a"), (12, "b")):  # a tenth of the tokens is worth ten times the batch
        tell(board, "a", float(running), running=running)
        assert decide(HOW, board, RoutingRequest(10_000, block_tokens=1000), Held(a=9), rng=RNG).backends[0].id == first


def test_what_is_queued_counts_as_the_own_prompt_does() -> None:
    board = board_of("a", "b")
    tell(board, "a", 1.0, queued_tokens=9500)
    assert decide(HOW, board, RoutingRequest(10_000, block_tokens=1000), Held(a=9), rng=RNG).backends[0].id == "b"
    tell(board, "a", 2.0, queued_tokens=8500)
    assert decide(HOW, board, RoutingRequest(10_000, block_tokens=1000), Held(a=9), rng=RNG).backends[0].id == "a"
