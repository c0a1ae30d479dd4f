import random
from collections import Counter

import pytest

from domain.ask import Ask, Endpoint
from routing.fleet import Backend, Fleet, Pool, State
from routing.load import Load
from routing.registry import POLICIES, TERMS
from routing.schedule import schedule

ASK = Ask(Endpoint.CHAT, "m", b"{}", False, False, 1, 10, None)


def pool(**states: State) -> Pool:
    backends = tuple(Backend(name, "p", state, "" if state is State.UP else "away") for name, state in states.items())
    return Fleet({"p": Pool("p", "m", "1", "vllm", backends)}).pools["p"]


def test_only_backends_that_are_up_take_part_and_the_others_say_why() -> None:
    route = schedule(ASK, pool(a=State.UP, b=State.DOWN, c=State.UNKNOWN), Load("abc"), 0.0, random.Random(1), "least_load")
    assert [b.id for b in route.backends] == ["a"]
    explained = route.explanation()
    assert {(c.backend, c.excluded) for c in explained.candidates} == {("a", None), ("b", "away"), ("c", "away")}
    assert explained.sentence() == "least_load: a (in_flight=0, share=1); excluded b: away, c: away"


def test_nobody_up_is_an_empty_route() -> None:
    route = schedule(ASK, pool(a=State.DOWN), Load("a"), 0.0, random.Random(1), "least_load")
    assert route.backends == []
    assert "nobody eligible" in route.explanation().sentence()


def test_the_least_loaded_comes_first_and_ties_are_drawn_evenly() -> None:
    load, rng = Load("abc"), random.Random(3)
    load.charge("b")
    firsts = Counter(
        schedule(ASK, pool(a=State.UP, b=State.UP, c=State.UP), load, 0.0, rng, "least_load").backends[0].id for _ in range(600)
    )
    assert set(firsts) == {"a", "c"}
    assert min(firsts.values()) > 240
    assert schedule(ASK, pool(a=State.UP, b=State.UP), load, 0.0, rng, "least_load").backends[-1].id == "b"


@pytest.mark.req("R43")
def test_a_backend_with_an_empty_cache_starts_with_a_tenth_and_has_its_share_after_half_a_minute() -> None:
    rng = random.Random(5)
    backends = (Backend("old", "p", State.UP, ""), Backend("back", "p", State.UP, "", warming_since=100.0))
    warming = Fleet({"p": Pool("p", "m", "1", "vllm", backends)}).pools["p"]
    for now, least, most in ((100.0, 0.05, 0.14), (115.0, 0.30, 0.40), (130.0, 0.47, 0.53)):
        load = Load(["old", "back"])
        for _ in range(1000):  # requests that stay: the shares in flight are what the policy aims at
            load.charge(schedule(ASK, warming, load, now, rng, "least_load").backends[0].id)
        assert least < load.in_flight["back"] / 1000 < most


def test_the_same_dice_give_the_same_route() -> None:
    routes = [schedule(ASK, pool(a=State.UP, b=State.UP), Load("ab"), 0.0, random.Random(9), "least_load") for _ in range(2)]
    assert routes[0] == routes[1]


def test_a_new_snapshot_shares_nothing_mutable_with_the_old_one() -> None:
    fleet = Fleet({"p": Pool("p", "m", "1", "vllm", (Backend("a", "p"), Backend("b", "p")))})
    assert not fleet.known
    changed = fleet.with_backend(Backend("a", "p", State.UP, "")).with_backend(Backend("b", "p", State.DOWN, "x"))
    assert (fleet.pools["p"].up, fleet.known) == ((), False)
    assert ([b.id for b in changed.pools["p"].up], changed.known) == (["a"], True)
    assert changed.with_backend(Backend("a", "p", State.UP, "")) is changed


def test_charges_are_released_exactly() -> None:
    load = Load("ab")
    for _ in range(3):
        load.charge("a")
    load.release("a")
    assert (load.in_flight, load.total()) == ({"a": 2, "b": 0}, 2)
    with pytest.raises(KeyError):
        load.charge("nobody")


def test_every_policy_names_its_terms() -> None:
    assert POLICIES.keys() == TERMS.keys()
