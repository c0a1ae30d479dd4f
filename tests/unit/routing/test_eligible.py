import random

import pytest

from routing.fleet import Availability, Backend
from routing.load import BackendFacts, LoadTable
from routing.policy_instance import Choice, policy_instance
from routing.ports import Adapters, Circumstances, RoutingRequest
from routing.schedule import Route, place
from tests.placement import Held, board_of, decide, pool_of, tell

RNG = random.Random(1)
LEAST = policy_instance("least_load")


def reasons(route: Route) -> dict[str, str]:
    return {one.id: one.reason for one in route.excluded}


def test_who_is_away_or_cannot_hold_it_says_so_and_the_others_serve() -> None:
    load_table = board_of(*"abcde")
    load_table.set_facts("b", BackendFacts(in_flight_cap=2))
    load_table.set_facts("c", BackendFacts(context_tokens=8192))
    tell(load_table, "d", 1.0, kv_capacity=9000)
    held = [load_table.charge("b", 1, 1, 1.0) for _ in range(2)]
    pool = pool_of("a", "b", "c", "d", Backend("e", "p", Availability.DOWN, "away"))
    route = place(RoutingRequest(9000, output_tokens=100), pool, load_table, LEAST, Circumstances(2.0), RNG)
    assert [one.id for one in route.backends] == ["a"]
    assert reasons(route) == {
        "b": "full: 2 requests are in flight there, its cap",
        "c": "its context is 8192 tokens, the prompt has 9000",
        "d": "its KV cache holds 9000 tokens, the prompt has 9000",
        "e": "away",
    }
    load_table.release(held[0])
    assert [one.id for one in place(RoutingRequest(100), pool, load_table, LEAST, Circumstances(2.0), RNG).backends] != []


def test_nobody_eligible_is_an_empty_route_with_reasons() -> None:
    load_table = board_of("a", "b")
    load_table.set_facts("a", BackendFacts(context_tokens=10))
    load_table.set_facts("b", BackendFacts(context_tokens=20))
    route = decide(LEAST, load_table, RoutingRequest(100), rng=RNG)
    assert (route.ranked, sorted(reasons(route))) == ((), ["a", "b"])
    assert "nobody eligible" in route.explanation().sentence()


def test_a_full_cache_sends_elsewhere_while_there_is_room_and_queues_when_there_is_none() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, kv_usage=0.999)
    tell(load_table, "b", 1.0, kv_usage=0.5, running=90)
    route = decide(LEAST, load_table, RoutingRequest(4000), rng=RNG)
    assert [one.id for one in route.backends] == ["b"]
    assert "399600 of 400000 tokens of its KV cache are promised, it needs 4256" in reasons(route)["a"]
    assert decide(LEAST, load_table, RoutingRequest(4000), Held(a=10), rng=RNG).backends[0].id == "b"  # 640 tokens less do not fit either
    assert decide(LEAST, load_table, RoutingRequest(4000, block_tokens=4000), Held(a=1), rng=RNG).backends[0].id == "a"
    tell(load_table, "b", 2.0, kv_usage=1.0)
    assert len(decide(LEAST, load_table, RoutingRequest(4000), rng=RNG).backends) == 2
    strict = policy_instance("least_load", choice=Choice(refuse_full=True))
    assert decide(strict, load_table, RoutingRequest(4000), rng=RNG).backends == []


@pytest.mark.req("ROUTERS-5")
def test_a_stale_report_takes_nobody_out_and_admits_no_more_than_the_cap() -> None:
    load_table = board_of("a", "b", at=9.0)
    tell(load_table, "a", 9.5, kv_usage=1.0)
    load_table.set_facts("a", BackendFacts(in_flight_cap=3))
    load_table.report("b", running=0, waiting=0, kv_usage=0.0, read_at=20.0, asked_at=20.0)
    load_table.stale(20.0, 5.0)
    assert len(decide(LEAST, load_table, RoutingRequest(4000), rng=RNG).backends) == 2
    for _ in range(3):
        load_table.charge("a", 1, 1, 21.0)
    assert [one.id for one in decide(LEAST, load_table, RoutingRequest(4000), rng=RNG).backends] == ["b"]


def test_backends_that_cannot_get_the_adapter_are_out() -> None:
    load_table = board_of("a", "b")
    route = place(
        RoutingRequest(10, lora="x"),
        pool_of("a", "b"),
        load_table,
        LEAST,
        Circumstances(0.0, adapters=Adapters((), {"a": "no slots"})),
        RNG,
    )
    assert ([one.id for one in route.backends], reasons(route)) == (["b"], {"a": "no slots"})


def test_matches_are_tokens_of_the_prompt_as_far_as_they_are_trusted() -> None:
    load_table: LoadTable = board_of("a", "b", "c")
    load_table.set_trust("b", 0.5)
    route = decide(LEAST, load_table, RoutingRequest(1000, block_tokens=64), Held(a=100, b=10), rng=RNG)
    assert {one.id: matched for one, matched in zip(route.backends, route.matched, strict=True)} == {"a": 999, "b": 320, "c": 0}


def test_who_fails_others_is_left_out_while_somebody_is_left() -> None:
    load_table = board_of("a", "b", "c")
    load_table.set_facts("c", BackendFacts(context_tokens=10))
    pool, request = pool_of("a", "b", "c"), RoutingRequest(100, exact=True)

    def to(**shut: str) -> Route:
        return place(request, pool, load_table, LEAST, Circumstances(1.0, shut=shut), RNG)

    assert [one.id for one in to(a="breaker open").backends] == ["b"]
    assert reasons(to(a="breaker open"))["a"] == "breaker open"
    assert {one.id for one in to(a="breaker open", b="breaker open").backends} == {"a", "b"}, "c cannot, so both are tried"
    assert reasons(to(c="breaker open"))["c"].startswith("its context is")
    alone = place(request, pool_of("a"), load_table, LEAST, Circumstances(1.0, shut={"a": "breaker open"}), RNG)
    assert [one.id for one in alone.backends] == ["a"]
