"""Which of the backends with nearly the same cost is taken."""

import random

import pytest

from routing.policy_instance import Choice, policy_instance
from routing.ports import RoutingRequest
from routing.tie_break import rendezvous
from tests.placement import Held, board_of, decide

HOW = policy_instance("predicted_latency")


@pytest.mark.req("ROUTERS-17")
def test_every_process_names_the_same_backend_for_a_prompt_that_nobody_knows() -> None:
    named = {}
    for prompt in range(200):
        request = RoutingRequest(2048, list(range(prompt * 1000, prompt * 1000 + 32)), 64)
        # 1 in 100 explores; the order of the backends is each process's own
        routes = [
            decide(HOW, board_of(*ids), request, rng=random.Random(seed)) for seed, ids in enumerate(("abcd", "dcba", "bdac", "cadb"))
        ]
        firsts = [route.backends[0].id for route in routes if route.why != "explored"]
        assert len(set(firsts)) == 1
        named[prompt] = firsts[0]
    counts = [list(named.values()).count(one) for one in "abcd"]
    assert min(counts) >= 30, "and each backend gets its share"


def test_what_backends_hold_alike_does_not_decide() -> None:
    """Conversations begin with the same system prompt, and are spread all the same."""
    firsts = set()
    for at in range(40):
        request = RoutingRequest(2048, [*range(16), *range(1000 * at + 16, 1000 * at + 32)], 64)
        firsts.add(decide(HOW, board_of(*"abcd"), request, Held(common=16, a=16, b=16, c=16, d=16), rng=random.Random(at)).backends[0].id)
    assert firsts == set("abcd")


def test_prompts_without_a_whole_block_are_drawn() -> None:
    routes = [decide(HOW, board_of(*"abcd"), RoutingRequest(20), rng=random.Random(seed)) for seed in range(60)]
    assert {route.backends[0].id for route in routes} == set("abcd")
    assert "rendezvous" not in {route.why for route in routes}


def test_the_load_decides_before_the_name() -> None:
    request = RoutingRequest(2048, list(range(32)), 64)
    first = decide(HOW, board_of(*"abcd"), request, rng=random.Random(3)).backends[0].id
    load_table = board_of(*"abcd")
    load_table.charge(first, 8000, 9000, 1.0)
    route = decide(HOW, load_table, request, rng=random.Random(3))
    assert route.backends[0].id != first


@pytest.mark.parametrize(
    ("queued", "slo_s", "explored"), [(8_000, None, True), (8_000, 4.0, True), (40_000, None, False), (24_000, 2.1, False)]
)
def test_who_explores_goes_to_a_backend_that_costs_up_to_half_a_second_more(queued: int, slo_s: float | None, explored: bool) -> None:
    """However little a conversation's backend may cost more: rarely chosen backends have to be measured."""
    how = policy_instance("predicted_latency", choice=Choice(explore_share=0.2, sticky_s=0.0))
    load_table = board_of("a", "b")
    load_table.charge("a", queued, queued, 1.0)  # 0.2 s, 1 s and 0.6 s
    routes = [decide(how, load_table, RoutingRequest(500, ttft_slo_s=slo_s), rng=random.Random(seed)) for seed in range(200)]
    assert ("a" in {route.backends[0].id for route in routes if route.why == "explored"}) is explored


def test_when_a_backend_leaves_only_its_prompts_go_elsewhere() -> None:
    names = [11, 22, 33, 44]
    for block in range(300):
        before = rendezvous(block, range(4), names)
        without = rendezvous(block, range(3), names[:3])
        assert before in (3, without)
