import pytest
from structlog.testing import capture_logs

from gateway.placement.pool_state import UNSAID_CAPACITY_TOKENS, PoolStates
from policies.routing_choice import routing_of
from routing.prefix.chain import BLOCK_TOKENS
from routing.prefix.trust import LAG_S, PROMPTS
from tests.grounds import charged, grounds_of, released

CHAIN = list(range(1, 9))


def held(grounds: PoolStates, backend: str = "a", now: float = 0.0) -> int:
    return grounds.index.match(CHAIN, now).held(backend)


def trust(grounds: PoolStates, backend: str = "a") -> float:
    board = grounds["p"].board
    return board.trust[board.row_of[backend]]


@pytest.mark.req("ROUTERS-10")
def test_a_backend_that_left_matches_nothing_and_begins_anew_when_it_comes_back() -> None:
    grounds = grounds_of("a", "b")
    grounds.index.touch("a", CHAIN, 0.0)
    grounds["p"].sessions.held(5, "a")
    grounds.drop("a")
    assert (held(grounds), grounds.of("a"), grounds["p"].sessions.holder(5), grounds.in_flight("a")) == (0, None, "", 0)
    grounds.drop("a")
    grounds.add("p", "a")
    assert held(grounds) == 0


@pytest.mark.req("ROUTERS-29")
def test_nobody_is_dropped_under_a_request() -> None:
    grounds = grounds_of("a")
    charge = charged(grounds, "a")
    with pytest.raises(ValueError, match="1 requests are in flight"):
        grounds.drop("a")
    released(grounds, charge)
    grounds.drop("a")


def test_what_is_guessed_is_bounded_by_what_the_engine_says_it_has() -> None:
    grounds = grounds_of("a")
    grounds.index.touch("a", list(range(10_000)), 0.0)
    assert grounds.index.match(list(range(10_000)), 0.0).held("a") <= UNSAID_CAPACITY_TOKENS // BLOCK_TOKENS
    grounds.capacity("a", 4 * BLOCK_TOKENS)
    grounds.index.touch("a", CHAIN, 0.0)
    assert held(grounds) <= 4


def test_events_take_the_place_of_guesses_and_give_it_back() -> None:
    grounds = grounds_of("a")
    grounds.index.touch("a", CHAIN, 0.0)
    grounds.use_events("a")
    assert (held(grounds), grounds.is_exact("a")) == (0, True)
    grounds.index.touch("a", CHAIN, 0.0)
    assert held(grounds) == 0
    grounds.index.stored("a", CHAIN)
    assert held(grounds) == 8
    grounds.restarted("a")
    assert held(grounds) == 8, "its events say themselves that its cache is empty"
    grounds.use_predictions("a")
    assert (held(grounds), grounds.is_exact("a")) == (0, False)


@pytest.mark.req("ROUTERS-10")
def test_a_restart_empties_what_is_guessed() -> None:
    grounds = grounds_of("a", "b")
    for backend in "ab":
        grounds.index.touch(backend, CHAIN, 0.0)
    grounds.restarted("a")
    assert (held(grounds, "a"), held(grounds, "b")) == (0, 8)
    grounds.index.touch("a", CHAIN, 0.0)
    assert held(grounds) == 8, "and it is guessed at again"


@pytest.mark.req("ROUTERS-11")
def test_while_events_do_not_come_nothing_they_said_counts() -> None:
    grounds = grounds_of("a")
    grounds.use_events("a")
    grounds.events("a", connected=False, stored=0, now=0.0)
    assert trust(grounds) == 0.0
    grounds.events("a", connected=True, stored=0, now=1.0)
    assert trust(grounds) == 1.0


@pytest.mark.req("ROUTERS-26")
def test_an_engine_whose_events_tell_nothing_is_guessed_at_and_it_is_said_once() -> None:
    grounds = grounds_of("a")
    grounds.use_events("a")
    with capture_logs() as said:
        for number in range(PROMPTS + 10):
            grounds.answered("a", [number * 10 + at for at in range(8)], float(number))
            grounds.events("a", connected=True, stored=0, now=float(number))
        grounds.events("a", connected=True, stored=0, now=PROMPTS + 10 + LAG_S)
    assert [line["event"] for line in said] == ["kv events of no use"]
    assert not grounds.is_exact("a")
    grounds.index.touch("a", CHAIN, 0.0)
    assert held(grounds) == 8


@pytest.mark.req("ROUTERS-12")
def test_an_engine_that_says_otherwise_is_believed_less_and_an_alarm_is_raised() -> None:
    grounds = grounds_of("a", "b")
    with capture_logs() as said:
        for _ in range(200):
            grounds.compared("a", 4096.0, 0)
            grounds.compared("b", 4096.0, 4090)
    assert trust(grounds, "a") < 0.1
    assert trust(grounds, "b") == 1.0
    assert [(line["event"], line["backend"]) for line in said] == [("prefix index off", "a")]
    grounds.restarted("a")
    assert trust(grounds, "a") == 1.0


def test_tenants_whose_files_say_the_same_share_what_a_policy_remembers() -> None:
    ground = grounds_of("a")["p"]
    one, same = routing_of("round_robin"), routing_of("round_robin")
    assert ground.choosing(one) is ground.choosing(same)
    assert ground.choosing(one) is not ground.choosing(routing_of("p2c"))
