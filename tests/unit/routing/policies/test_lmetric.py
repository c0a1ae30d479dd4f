import random

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide, tell

HOW, RNG = policy_instance("lmetric"), random.Random(1)


def test_a_match_counts_as_much_as_the_batch_it_would_disturb() -> None:
    load_table = board_of("a", "b")
    for running, first in ((8, "a"), (12, "b")):  # a tenth of the tokens is worth ten times the batch
        tell(load_table, "a", float(running), running=running)
        assert decide(HOW, load_table, RoutingRequest(10_000, block_tokens=1000), Held(a=9), rng=RNG).backends[0].id == first


def test_what_is_queued_counts_as_the_own_prompt_does() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, queued_tokens=9500)
    assert decide(HOW, load_table, RoutingRequest(10_000, block_tokens=1000), Held(a=9), rng=RNG).backends[0].id == "b"
    tell(load_table, "a", 2.0, queued_tokens=8500)
    assert decide(HOW, load_table, RoutingRequest(10_000, block_tokens=1000), Held(a=9), rng=RNG).backends[0].id == "a"
