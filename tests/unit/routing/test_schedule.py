import random
from collections import Counter

import pytest

from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import LoadTable
from routing.policy_instance import policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.schedule import Route, place

DEMAND = RoutingRequest(100)


def pool(**states: Availability) -> Pool:
    backends = tuple(Backend(name, "p", state, "" if state is Availability.UP else "away") for name, state in states.items())
    return Fleet({"p": Pool("p", "m", "1", "vllm", backends)}).pools["p"]


def routed(there: Pool, load_table: LoadTable, rng: random.Random, now: float = 0.0) -> Route:
    return place(DEMAND, there, load_table, policy_instance("least_load"), Circumstances(now), rng)


def test_only_backends_that_are_up_take_part_and_the_others_say_why() -> None:
    route = routed(pool(a=Availability.UP, b=Availability.DOWN, c=Availability.UNKNOWN), LoadTable("abc"), random.Random(1))
    assert [b.id for b in route.backends] == ["a"]
    explained = route.explanation()
    assert {(c.backend, c.excluded) for c in explained.candidates} == {("a", None), ("b", "away"), ("c", "away")}
    assert explained.sentence() == "least_load: a; excluded b: away, c: away"


def test_nobody_up_is_an_empty_route() -> None:
    route = routed(pool(a=Availability.DOWN), LoadTable("a"), random.Random(1))
    assert route.backends == []
    assert "nobody eligible" in route.explanation().sentence()


def test_the_least_loaded_comes_first_and_ties_are_drawn_evenly() -> None:
    load_table, rng = LoadTable("abc"), random.Random(3)
    load_table.charge("b", 1, 1, 0.0)
    firsts = Counter(
        routed(pool(a=Availability.UP, b=Availability.UP, c=Availability.UP), load_table, rng).backends[0].id for _ in range(600)
    )
    assert set(firsts) == {"a", "c"}
    assert min(firsts.values()) > 240
    route = routed(pool(a=Availability.UP, b=Availability.UP), load_table, rng)
    assert (route.backends[-1].id, route.costs) == ("b", (1.0, 2.0))


@pytest.mark.req("R43")
def test_a_backend_with_an_empty_cache_starts_with_a_tenth_and_has_its_share_after_half_a_minute() -> None:
    rng = random.Random(5)
    backends = (Backend("old", "p", Availability.UP, ""), Backend("back", "p", Availability.UP, "", warming_since=100.0))
    warming = Fleet({"p": Pool("p", "m", "1", "vllm", backends)}).pools["p"]
    for now, least, most in ((100.0, 0.05, 0.14), (115.0, 0.30, 0.40), (130.0, 0.47, 0.53)):
        load_table = LoadTable(["old", "back"])
        for _ in range(1000):  # requests that stay: the shares in flight are what the policy aims at
            load_table.charge(routed(warming, load_table, rng, now).backends[0].id, 1, 1, now)
        assert least < load_table.in_flight("back") / 1000 < most


def test_the_same_dice_give_the_same_route() -> None:
    routes = [routed(pool(a=Availability.UP, b=Availability.UP), LoadTable("ab"), random.Random(9)) for _ in range(2)]
    assert routes[0] == routes[1]


def test_a_new_snapshot_shares_nothing_mutable_with_the_old_one() -> None:
    fleet = Fleet({"p": Pool("p", "m", "1", "vllm", (Backend("a", "p"), Backend("b", "p")))})
    assert not fleet.known
    changed = fleet.with_backend(Backend("a", "p", Availability.UP, "")).with_backend(Backend("b", "p", Availability.DOWN, "x"))
    assert (fleet.pools["p"].up, fleet.known) == ((), False)
    assert ([b.id for b in changed.pools["p"].up], changed.known) == (["a"], True)
    assert changed.with_backend(Backend("a", "p", Availability.UP, "")) is changed
