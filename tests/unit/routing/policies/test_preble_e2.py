import random

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide, tell

RNG = random.Random(1)


def test_exploits_when_more_is_cached_than_new_and_explores_otherwise() -> None:
    load_table, request = board_of("a", "b"), RoutingRequest(10_000, block_tokens=1000, output_tokens=1)
    for blocks, first in ((6, "a"), (4, "b")):
        how = policy_instance("preble_e2")
        assert how.memory is not None
        how.memory.placed(RoutingRequest(8000, output_tokens=1), "a", 8000, 1.0)
        assert decide(how, load_table, request, Held(a=blocks), rng=RNG).backends[0].id == first


def test_of_two_holders_the_lighter_and_load_is_forgotten_after_three_minutes() -> None:
    load_table, how, request = board_of("a", "b", "c"), policy_instance("preble_e2"), RoutingRequest(10_000, block_tokens=1000)
    assert how.memory is not None
    how.memory.placed(request, "a", 9000, 10.0)
    how.memory.placed(request, "b", 2000, 100.0)
    how.memory.placed(request, "c", 2000, 100.0)
    assert decide(how, load_table, request, Held(a=8, b=8), rng=RNG, now=101.0).backends[0].id == "b"
    assert decide(how, load_table, request, Held(a=8, b=8), rng=RNG, now=195.0).backends[0].id == "a"


def test_the_balance_is_restored_when_the_heaviest_has_half_more_than_the_lightest() -> None:
    load_table, how, request = board_of("a", "b"), policy_instance("preble_e2"), RoutingRequest(10_000, block_tokens=1000, output_tokens=1)
    assert how.memory is not None
    how.memory.placed(request, "b", 4000, 1.0)
    went = []
    for at in range(300):
        first = decide(how, load_table, request, Held(a=8), rng=RNG, now=1.0 + at / 100).backends[0].id
        how.memory.placed(request, first, 2000, 1.0 + at / 100)
        went.append(first)
    assert went[:40] == ["a"] * 40 and "b" in went


def test_what_must_leave_the_cache_costs_as_often_as_it_is_hit() -> None:
    load_table, how, request = board_of("a", "b"), policy_instance("preble_e2"), RoutingRequest(10_000, output_tokens=1)
    assert how.memory is not None
    for one in "ab":
        how.memory.placed(request, one, 5000, 1.0)
    tell(load_table, "a", 1.0, kv_usage=0.97)
    route = decide(how, load_table, request, rng=RNG)
    assert [one.id for one in route.backends] == ["b", "a"]
    assert dict(route.explanation().candidates[1].terms)["evict_s"] > 0
