import random
from math import inf

import pytest

from routing.load import BackendFacts, LoadTable
from routing.policy_instance import Choice, policy_instance
from routing.ports import RoutingRequest
from routing.rates import UNKNOWN_RATES
from routing.room import FULL, has_no_room, room_without
from tests.placement import Held, board_of, decide, tell

LEAST = policy_instance("least_load")
RNG = random.Random(1)


def ids(load_table: LoadTable, request: RoutingRequest, held: Held | None = None) -> list[str]:
    route = decide(LEAST, load_table, request, rng=RNG) if held is None else decide(LEAST, load_table, request, held, rng=RNG)
    return sorted(one.id for one in route.backends)


@pytest.mark.parametrize("backends", ["a", "ab"])
def test_who_has_as_many_requests_as_it_bears_is_full_until_one_ends(backends: str) -> None:
    load_table = board_of(*backends)
    for one in backends:
        load_table.set_limit(one, requests=2)
    charges = [load_table.charge(one, 10, 10, 1.0) for one in backends for _ in range(2)]
    route = decide(LEAST, load_table, RoutingRequest(100), rng=RNG)
    assert (route.backends, route.full) == ([], True)
    assert all(one.reason.startswith(FULL) for one in route.excluded)
    load_table.release(charges[0])
    assert ids(load_table, RoutingRequest(100)) == ["a"]
    load_table.set_limit("a", requests=inf)
    assert not decide(LEAST, load_table, RoutingRequest(100), rng=RNG).full


@pytest.mark.req("ROUTERS-18")
def test_a_spike_of_100_ms_between_two_reports_fills_a_backend_while_it_lasts() -> None:
    """Room is counted and not sampled: the reports before, in and after the spike say that the engine is idle."""
    load_table = board_of("a", at=1.0)
    load_table.set_limit("a", requests=12, tokens=2000)
    charges = [load_table.charge("a", 100, 150, 1.01 + at * 0.001) for at in range(12)]
    assert decide(LEAST, load_table, RoutingRequest(100), rng=RNG, now=1.03).full
    idle = {"running": 0.0, "waiting": 0.0, "queued_tokens": 0.0, "kv_usage": 0.0, "kv_capacity": 400_000.0}
    load_table.report("a", **idle, read_at=1.05, asked_at=1.0)
    assert decide(LEAST, load_table, RoutingRequest(100), rng=RNG, now=1.06).full
    assert load_table.requests[0] == 12
    for charge in charges:
        load_table.release(charge)
    tell(load_table, "a", 1.2)
    assert ids(load_table, RoutingRequest(100)) == ["a"]
    charge = load_table.charge("a", 1950, 2000, 1.21)
    assert decide(LEAST, load_table, RoutingRequest(100), rng=RNG, now=1.25).full, "so do tokens"
    load_table.release(charge)
    assert ids(load_table, RoutingRequest(100)) == ["a"]


def test_prompts_being_computed_are_bounded_and_one_alone_may_be_as_long_as_it_likes() -> None:
    load_table = board_of("a", "b")
    load_table.set_limit("a", tokens=1000)
    load_table.set_facts("b", BackendFacts(in_flight_cap=1))
    load_table.charge("b", 1, 1, 1.0)
    assert ids(load_table, RoutingRequest(5000)) == ["a"]
    charge = load_table.charge("a", 5000, 5000, 1.0)
    assert decide(LEAST, load_table, RoutingRequest(1), rng=RNG).full
    load_table.begun(charge)
    assert ids(load_table, RoutingRequest(900)) == ["a"]
    load_table.charge("a", 500, 500, 1.0)
    assert ids(load_table, RoutingRequest(900)) == []
    assert ids(load_table, RoutingRequest(900), Held(a=8)) == ["a"]  # 512 of them are there


def test_what_could_never_be_taken_does_not_wait() -> None:
    load_table = board_of("a", "b")
    load_table.set_facts("a", BackendFacts(context_tokens=50))
    load_table.set_facts("b", BackendFacts(context_tokens=50))
    load_table.set_limit("a", requests=0)
    assert not decide(LEAST, load_table, RoutingRequest(100), rng=RNG).full
    load_table.set_facts("b", BackendFacts(context_tokens=500))
    load_table.set_limit("b", requests=0)
    assert decide(LEAST, load_table, RoutingRequest(100), rng=RNG).full  # "b" will have room, "a" never for this one
    strict = policy_instance("least_load", choice=Choice(refuse_full=True))
    load_table = board_of("c")
    tell(load_table, "c", 1.0, kv_usage=1.0, kv_capacity=1000.0)
    load_table.set_facts("c", BackendFacts(price=1.0))
    assert decide(strict, load_table, RoutingRequest(500, output_tokens=100), rng=RNG).full
    assert not decide(strict, load_table, RoutingRequest(900, output_tokens=200), rng=RNG).full


def test_who_may_fill_a_part_only_is_told_what_is_kept_and_has_one_request_in_any_case() -> None:
    load_table = board_of("a")
    load_table.set_limit("a", requests=4, tokens=1000)
    load_table.charge("a", 100, 100, 1.0)
    assert has_no_room(load_table, 0, 300, 0.5) == ""
    assert has_no_room(load_table, 0, 500, 0.5) == (
        "full: 100 prompt tokens are being computed there, it is taken to bear 1000, "
        "and 50% of that is kept for tenants that have less there"
    )
    load_table.charge("a", 100, 100, 1.0)
    assert has_no_room(load_table, 0, 1) == ""
    assert has_no_room(load_table, 0, 1, 0.5).startswith(
        "full: 2 requests are in flight there, it is taken to bear 4, and 50% of that is kept"
    )
    load_table = board_of("b")
    load_table.set_facts("b", BackendFacts(in_flight_cap=3))
    assert has_no_room(load_table, 0, 1, 0.1) == ""
    load_table.charge("b", 1, 1, 1.0)
    assert "1 requests are in flight there, its cap, and 90%" in has_no_room(load_table, 0, 1, 0.1)
    load_table.set_limit("b", requests=0)
    assert has_no_room(load_table, 0, 1, 0.5), "a limit of nothing is one for everybody"


def test_whoever_waits_is_told_of_every_change_that_may_make_room() -> None:
    load_table, told = board_of("a", "b"), []
    charge = load_table.charge("a", 10, 10, 1.0)
    load_table.freed = lambda: told.append(len(told))
    load_table.charge("b", 10, 10, 1.0)
    assert len(told) == 0
    load_table.begun(charge)
    load_table.release(charge)
    load_table.release(charge)
    load_table.set_limit("a", requests=5)
    load_table.set_facts("a", BackendFacts(in_flight_cap=9))
    load_table.add("c")
    assert len(told) == 5


def test_limits_stay_with_their_backend_when_another_one_leaves() -> None:
    load_table = board_of("a", "b")
    load_table.set_limit("b", requests=0)
    load_table.drop("a")
    assert (load_table.limit, load_table.limited, ids(load_table, RoutingRequest(1))) == ([0], True, [])
    load_table.drop("b")
    assert not load_table.limited


def test_one_less_makes_room_where_it_was_in_the_way_by_number_or_by_tokens() -> None:
    load_table = board_of("a")
    load_table.set_limit("a", requests=2)
    one, other = [load_table.charge("a", 100, 100, 1.0) for _ in range(2)]
    assert room_without(load_table, 0, 50, one)
    load_table.set_limit("a", requests=1)
    assert not room_without(load_table, 0, 50, one)
    load_table.set_limit("a", requests=9, tokens=160)
    assert room_without(load_table, 0, 60, one)
    assert not room_without(load_table, 0, 61, one), "the other is still there"
    load_table.release(other)
    assert room_without(load_table, 0, 10_000, one), "however long, it is taken where nothing else is computed"
    load_table.set_limit("a")
    load_table.set_facts("a", BackendFacts(in_flight_cap=1))
    assert room_without(load_table, 0, 50, one)
    load_table.charge("a", 1, 1, 1.0)
    assert not room_without(load_table, 0, 50, one)


def test_a_backend_with_seconds_of_unbegun_prompts_takes_no_more() -> None:
    load_table = LoadTable("ab")
    load_table.set_hold(0.4)
    tokens = 0.4 / load_table.prefill_s_token[0]
    assert has_no_room(load_table, 0, 10 * tokens) == "", "with nothing unbegun it takes a prompt of any length"
    first = load_table.charge("a", tokens - 1, tokens, 1.0)
    assert has_no_room(load_table, 0, 10 * tokens) == ""
    second = load_table.charge("a", 100, 200, 1.0)
    assert "0.40 s of work" in has_no_room(load_table, 0, 1.0)
    assert room_without(load_table, 0, 1.0, second)
    assert not room_without(load_table, 0, 1.0)
    load_table.set_rates("a", UNKNOWN_RATES._replace(prefill_s_token=UNKNOWN_RATES.prefill_s_token / 4))
    assert has_no_room(load_table, 0, 1.0) == "", "a backend found to be faster takes more tokens for the same seconds"
    load_table.set_rates("a", UNKNOWN_RATES)
    load_table.begun(first)
    assert has_no_room(load_table, 0, 1.0) == ""
    load_table.set_hold(inf)
    assert not load_table.limited


def test_the_hold_goes_with_its_row_when_a_backend_leaves() -> None:
    load_table = LoadTable("ab")
    load_table.set_hold(0.4)
    load_table.set_rates("b", UNKNOWN_RATES._replace(prefill_s_token=1e-3))
    load_table.drop("a")
    assert load_table.hold_tokens == [pytest.approx(400.0)]
