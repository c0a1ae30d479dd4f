import random
from collections import Counter

import pytest

from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import LoadTable
from routing.policy_instance import Choice, policy_instance
from routing.ports import Circumstances, Held, RoutingRequest
from routing.schedule import HAS_ROOM, Route, place
from tests.placement import Held as PrefixHeld
from tests.placement import board_of, decide, pool_of

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


def test_a_request_waits_for_the_best_backend_and_not_at_it() -> None:
    """A backend with half a second of unbegun prompts and the request's own prefix is still the best one: the request waits for it in the
    gateway, instead of computing its prompt again elsewhere or standing in the engine's queue."""
    load_table = board_of("a", "b", at=1.0)
    load_table.set_hold(0.4)
    policy_instance_ = policy_instance("predicted_latency", choice=Choice(explore_share=0.0))
    charge = load_table.charge("a", 20_000, 20_100, 1.0)
    prompt = RoutingRequest(40_000, output_tokens=10)
    held = decide(policy_instance_, load_table, prompt, PrefixHeld(a=620), rng=random.Random(1))
    assert (held.ranked, held.full) == ((), True)
    assert [(one.id, one.reason[:5]) for one in held.excluded] == [("a", "full:")]
    elsewhere = decide(policy_instance_, load_table, RoutingRequest(1_000, output_tokens=10), rng=random.Random(1))
    assert elsewhere.ranked[0][0].id == "b", "what a does not hold is computed sooner on b"
    load_table.begun(charge)
    assert decide(policy_instance_, load_table, prompt, PrefixHeld(a=620), rng=random.Random(1)).ranked[0][0].id == "a"
    least = policy_instance("least_load")
    load_table.charge("a", 20_000, 20_100, 1.0)
    for _ in range(5):
        load_table.charge("b", 1, 1, 1.0)
    assert decide(least, load_table, prompt, rng=random.Random(1)).ranked[0][0].id == "a", "a policy without seconds sends at once"


@pytest.mark.parametrize(("held", "first"), [(Held.WAIT, ""), (Held.ELSEWHERE, "b"), (Held.SEND, "a")])
def test_who_has_no_time_left_goes_where_room_is_and_who_may_not_wait_is_sent(held: Held, first: str) -> None:
    load_table = board_of("a", "b", at=1.0)
    load_table.set_hold(0.4)
    load_table.charge("a", 20_000, 20_100, 1.0)
    exact = policy_instance("predicted_latency", choice=Choice(explore_share=0.0))
    circumstances = Circumstances(1.0, PrefixHeld(a=620), held=held)
    route = place(RoutingRequest(40_000, output_tokens=10), pool_of("a", "b"), load_table, exact, circumstances, random.Random(1))
    assert [backend.id for backend, _ in route.ranked[:1]] == ([first] if first else [])
    assert (route.why == HAS_ROOM) == (first == "b")
    load_table.charge("b", 20_000, 20_100, 1.0)
    route = place(RoutingRequest(40_000, output_tokens=10), pool_of("a", "b"), load_table, exact, circumstances, random.Random(1))
    assert bool(route.ranked) == (held is Held.SEND), "nobody has room"
