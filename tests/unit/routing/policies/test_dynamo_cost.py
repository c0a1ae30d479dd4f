import random
from collections import Counter

from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide, tell

HOW, RNG = policy_instance("dynamo_cost"), random.Random(1)
DEMAND = RoutingRequest(16_000, block_tokens=16)


def test_the_cost_is_blocks_to_prefill_and_blocks_to_decode() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, queued_tokens=3200, kv_usage=0.02, running=9)
    route = decide(HOW, load_table, DEMAND, Held(a=600), rng=RNG)
    assert [(one.id, terms) for one, terms in route.ranked] == [("b", (1000, 0, 0)), ("a", (200 + 1000 - 600, 500, 0))]
    tell(load_table, "a", 2.0, queued_tokens=1600, kv_usage=0.01, running=9)
    assert decide(HOW, load_table, DEMAND, Held(a=600), rng=RNG).backends[0].id == "a"


def test_decay_devalues_a_match_where_more_waits() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, queued_tokens=9000)
    assert decide(HOW, load_table, DEMAND, Held(a=600), rng=RNG).backends[0].id == "a"
    assert decide(policy_instance("dynamo_cost", {"decay": 0.5}), load_table, DEMAND, Held(a=600), rng=RNG).backends[0].id == "b"


def test_temperature_draws_the_worse_now_and_then() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, kv_usage=0.1)
    firsts = Counter(
        decide(policy_instance("dynamo_cost", {"temperature": 0.5}), load_table, DEMAND, rng=RNG).backends[0].id for _ in range(4000)
    )
    assert 0.10 < firsts["a"] / 4000 < 0.14  # 1 / (1 + e^2) = 0.119
    assert {decide(HOW, load_table, DEMAND, rng=RNG).backends[0].id for _ in range(100)} == {"b"}
