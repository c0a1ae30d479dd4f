import pytest
from structlog.testing import capture_logs

from gateway.placement.pool_state import UNSAID_CAPACITY_TOKENS, PoolStates
from policies.routing_choice import routing_of
from routing.prefix.chain import BLOCK_TOKENS
from routing.prefix.trust import CHECKED_PROMPTS, EVENT_LAG_S
from tests.pool_states import charged, grounds_of, released

CHAIN = list(range(1, 9))


def held(pool_states: PoolStates, backend: str = "a", now: float = 0.0) -> int:
    return pool_states.index.match(CHAIN, now).held(backend)


def trust(pool_states: PoolStates, backend: str = "a") -> float:
    load_table = pool_states["p"].load_table
    return load_table.trust[load_table.row_of[backend]]


@pytest.mark.req("ROUTERS-10")
def test_a_backend_that_left_matches_nothing_and_begins_anew_when_it_comes_back() -> None:
    pool_states = grounds_of("a", "b")
    pool_states.index.touch("a", CHAIN, 0.0)
    pool_states["p"].sessions.held(5, "a")
    pool_states.drop("a")
    assert (held(pool_states), pool_states.of("a"), pool_states["p"].sessions.holder(5), pool_states.in_flight("a")) == (0, None, "", 0)
    pool_states.drop("a")
    pool_states.add("p", "a")
    assert held(pool_states) == 0


@pytest.mark.req("ROUTERS-29")
def test_nobody_is_dropped_under_a_request() -> None:
    pool_states = grounds_of("a")
    charge = charged(pool_states, "a")
    with pytest.raises(ValueError, match="1 requests are in flight"):
        pool_states.drop("a")
    released(pool_states, charge)
    pool_states.drop("a")


def test_what_is_guessed_is_bounded_by_what_the_engine_says_it_has() -> None:
    pool_states = grounds_of("a")
    pool_states.index.touch("a", list(range(10_000)), 0.0)
    assert pool_states.index.match(list(range(10_000)), 0.0).held("a") <= UNSAID_CAPACITY_TOKENS // BLOCK_TOKENS
    pool_states.capacity("a", 4 * BLOCK_TOKENS)
    pool_states.index.touch("a", CHAIN, 0.0)
    assert held(pool_states) <= 4


def test_events_take_the_place_of_guesses_and_give_it_back() -> None:
    pool_states = grounds_of("a")
    pool_states.index.touch("a", CHAIN, 0.0)
    pool_states.use_events("a")
    assert (held(pool_states), pool_states.is_exact("a")) == (0, True)
    pool_states.index.touch("a", CHAIN, 0.0)
    assert held(pool_states) == 0
    pool_states.index.stored("a", CHAIN)
    assert held(pool_states) == 8
    pool_states.restarted("a")
    assert held(pool_states) == 8, "its events say themselves that its cache is empty"
    pool_states.use_predictions("a")
    assert (held(pool_states), pool_states.is_exact("a")) == (0, False)


def test_what_events_cannot_tell_of_is_guessed_beside_them_within_the_engines_cache() -> None:
    pool_states = grounds_of("a")
    pool_states.capacity("a", 4 * BLOCK_TOKENS)
    pool_states.use_events("a")
    pool_states.index.confirm(pool_states.index.predict("a", CHAIN, 0.0), 0.1, told=False)
    assert (held(pool_states, now=60.0), pool_states.is_exact("a")) == (4, True)
    pool_states.index.took_in("a", 4)
    assert held(pool_states, now=60.0) == 0
    pool_states.capacity("a", 8 * BLOCK_TOKENS)
    pool_states.index.confirm(pool_states.index.predict("a", CHAIN, 60.0), 60.1, told=False)
    assert held(pool_states, now=90.0) == 8


@pytest.mark.req("ROUTERS-10")
def test_a_restart_empties_what_is_guessed() -> None:
    pool_states = grounds_of("a", "b")
    for backend in "ab":
        pool_states.index.touch(backend, CHAIN, 0.0)
    pool_states.restarted("a")
    assert (held(pool_states, "a"), held(pool_states, "b")) == (0, 8)
    pool_states.index.touch("a", CHAIN, 0.0)
    assert held(pool_states) == 8, "and it is guessed at again"


@pytest.mark.req("ROUTERS-11")
def test_while_events_do_not_come_nothing_they_said_counts() -> None:
    pool_states = grounds_of("a")
    pool_states.use_events("a")
    pool_states.events("a", connected=False, stored=0, now=0.0)
    assert trust(pool_states) == 0.0
    pool_states.events("a", connected=True, stored=0, now=1.0)
    assert trust(pool_states) == 1.0


@pytest.mark.req("ROUTERS-26")
def test_an_engine_whose_events_tell_nothing_is_guessed_at_and_it_is_said_once() -> None:
    pool_states = grounds_of("a")
    pool_states.use_events("a")
    with capture_logs() as said:
        for number in range(CHECKED_PROMPTS + 10):
            pool_states.prompt_answered("a", [number * 10 + at for at in range(8)], float(number))
            pool_states.events("a", connected=True, stored=0, now=float(number))
        pool_states.events("a", connected=True, stored=0, now=CHECKED_PROMPTS + 10 + EVENT_LAG_S)
    assert [line["event"] for line in said] == ["kv events of no use"]
    assert not pool_states.is_exact("a")
    pool_states.index.touch("a", CHAIN, 0.0)
    assert held(pool_states) == 8


@pytest.mark.req("ROUTERS-12")
def test_an_engine_that_says_otherwise_is_believed_less_and_an_alarm_is_raised() -> None:
    pool_states = grounds_of("a", "b")
    with capture_logs() as said:
        for _ in range(200):
            pool_states.note_cached("a", 4096.0, 0)
            pool_states.note_cached("b", 4096.0, 4090)
            assert trust(pool_states, "a") == pool_states.trusts.share("a") < 1.0
    assert trust(pool_states, "a") < 0.1
    assert trust(pool_states, "b") == 1.0
    assert [(line["event"], line["backend"]) for line in said] == [("prefix index off", "a")]
    pool_states.restarted("a")
    assert trust(pool_states, "a") == 1.0


def test_tenants_whose_files_say_the_same_share_what_a_policy_remembers() -> None:
    pool_state = grounds_of("a")["p"]
    one, same = routing_of("round_robin"), routing_of("round_robin")
    assert pool_state.policy_instance(one) is pool_state.policy_instance(same)
    assert pool_state.policy_instance(one) is not pool_state.policy_instance(routing_of("p2c"))
