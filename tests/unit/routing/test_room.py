import random
from math import inf

import pytest

from routing.choosing import Choice, choosing
from routing.load import BackendFacts, LoadTable
from routing.ports import RoutingRequest
from routing.room import FULL, has_no_room, room_without
from tests.placing import Held, board_of, decide, tell

LEAST = choosing("least_load")
RNG = random.Random(1)


def ids(board: LoadTable, demand: RoutingRequest, held: Held | None = None) -> list[str]:
    route = decide(LEAST, board, demand, rng=RNG) if held is None else decide(LEAST, board, demand, held, rng=RNG)
    return sorted(one.id for one in route.backends)


@pytest.mark.parametrize("backends", ["a", "ab"])
def test_who_has_as_many_requests_as_it_bears_is_full_until_one_ends(backends: str) -> None:
    board = board_of(*backends)
    for one in backends:
        board.set_limit(one, requests=2)
    charges = [board.charge(one, 10, 10, 1.0) for one in backends for _ in range(2)]
    route = decide(LEAST, board, RoutingRequest(100), rng=RNG)
    assert (route.backends, route.full) == ([], True)
    assert all(one.reason.startswith(FULL) for one in route.excluded)
    board.release(charges[0])
    assert ids(board, RoutingRequest(100)) == ["a"]
    board.set_limit("a", requests=inf)
    assert not decide(LEAST, board, RoutingRequest(100), rng=RNG).full


def test_prompts_being_computed_are_bounded_and_one_alone_may_be_as_long_as_it_likes() -> None:
    board = board_of("a", "b")
    board.set_limit("a", tokens=1000)
    board.set_facts("b", BackendFacts(in_flight_cap=1))
    board.charge("b", 1, 1, 1.0)
    assert ids(board, RoutingRequest(5000)) == ["a"]
    charge = board.charge("a", 5000, 5000, 1.0)
    assert decide(LEAST, board, RoutingRequest(1), rng=RNG).full
    board.begun(charge)
    assert ids(board, RoutingRequest(900)) == ["a"]
    board.charge("a", 500, 500, 1.0)
    assert ids(board, RoutingRequest(900)) == []
    assert ids(board, RoutingRequest(900), Held(a=8)) == ["a"]  # 512 of them are there


def test_what_could_never_be_taken_does_not_wait() -> None:
    board = board_of("a", "b")
    board.set_facts("a", BackendFacts(context_tokens=50))
    board.set_facts("b", BackendFacts(context_tokens=50))
    board.set_limit("a", requests=0)
    assert not decide(LEAST, board, RoutingRequest(100), rng=RNG).full
    board.set_facts("b", BackendFacts(context_tokens=500))
    board.set_limit("b", requests=0)
    assert decide(LEAST, board, RoutingRequest(100), rng=RNG).full  # "b" will have room, "a" never for this one
    strict = choosing("least_load", choice=Choice(refuse_full=True))
    board = board_of("c")
    tell(board, "c", 1.0, kv_usage=1.0, kv_capacity=1000.0)
    board.set_facts("c", BackendFacts(price=1.0))
    assert decide(strict, board, RoutingRequest(500, output_tokens=100), rng=RNG).full
    assert not decide(strict, board, RoutingRequest(900, output_tokens=200), rng=RNG).full


def test_who_may_fill_a_part_only_is_told_what_is_kept_and_has_one_request_in_any_case() -> None:
    board = board_of("a")
    board.set_limit("a", requests=4, tokens=1000)
    board.charge("a", 100, 100, 1.0)
    assert has_no_room(board, 0, 300, 0.5) == ""
    assert has_no_room(board, 0, 500, 0.5) == (
        "full: 100 prompt tokens are being computed there, it is taken to bear 1000, "
        "and 50% of that is kept for tenants that have less there"
    )
    board.charge("a", 100, 100, 1.0)
    assert has_no_room(board, 0, 1) == ""
    assert has_no_room(board, 0, 1, 0.5).startswith("full: 2 requests are in flight there, it is taken to bear 4, and 50% of that is kept")
    board = board_of("b")
    board.set_facts("b", BackendFacts(in_flight_cap=3))
    assert has_no_room(board, 0, 1, 0.1) == ""
    board.charge("b", 1, 1, 1.0)
    assert "1 requests are in flight there, its cap, and 90%" in has_no_room(board, 0, 1, 0.1)
    board.set_limit("b", requests=0)
    assert has_no_room(board, 0, 1, 0.5), "a limit of nothing is one for everybody"


def test_whoever_waits_is_told_of_every_change_that_may_make_room() -> None:
    board, told = board_of("a", "b"), []
    charge = board.charge("a", 10, 10, 1.0)
    board.freed = lambda: told.append(len(told))
    board.charge("b", 10, 10, 1.0)
    assert len(told) == 0
    board.begun(charge)
    board.release(charge)
    board.release(charge)
    board.set_limit("a", requests=5)
    board.set_facts("a", BackendFacts(in_flight_cap=9))
    board.add("c")
    assert len(told) == 5


def test_limits_stay_with_their_backend_when_another_one_leaves() -> None:
    board = board_of("a", "b")
    board.set_limit("b", requests=0)
    board.drop("a")
    assert (board.limit, board.limited, ids(board, RoutingRequest(1))) == ([0], True, [])
    board.drop("b")
    assert not board.limited


def test_one_less_makes_room_where_it_was_in_the_way_by_number_or_by_tokens() -> None:
    board = board_of("a")
    board.set_limit("a", requests=2)
    one, other = [board.charge("a", 100, 100, 1.0) for _ in range(2)]
    assert room_without(board, 0, 50, one)
    board.set_limit("a", requests=1)
    assert not room_without(board, 0, 50, one)
    board.set_limit("a", requests=9, tokens=160)
    assert room_without(board, 0, 60, one)
    assert not room_without(board, 0, 61, one), "the other is still there"
    board.release(other)
    assert room_without(board, 0, 10_000, one), "however long, it is taken where nothing else is computed"
    board.set_limit("a")
    board.set_facts("a", BackendFacts(in_flight_cap=1))
    assert room_without(board, 0, 50, one)
    board.charge("a", 1, 1, 1.0)
    assert not room_without(board, 0, 50, one)
