"""Who has the adapter comes first, within a bound; the policy's order stands otherwise."""

import random

from hypothesis import given
from hypothesis import strategies as st

from routing.fleet import Availability, Backend, Pool
from routing.load import LoadTable
from routing.policy_instance import policy_instance
from routing.ports import Adapters, Circumstances, RoutingRequest
from routing.residency import SPREAD, with_adapter
from routing.schedule import Route, place

IDS = ["a", "b", "c", "d"]


def routed(in_flight: dict[str, int], unable: dict[str, str] | None = None, warming: str = "") -> tuple[Route, LoadTable]:
    backends = tuple(Backend(name, "p", Availability.UP, "", 0.0 if name == warming else None) for name in in_flight)
    load_table = LoadTable(in_flight)
    for name, count in in_flight.items():
        for _ in range(count):
            load_table.charge(name, 1, 1, 0.0)
    pool = Pool("p", "m", "1", "vllm", backends, up=backends, warming=warming != "")
    adapters = Adapters((), unable or {})
    return place(
        RoutingRequest(9), pool, load_table, policy_instance("least_load"), Circumstances(1.0, adapters=adapters), random.Random(1)
    ), load_table


def order(in_flight: dict[str, int], there: set[str]) -> list[str]:
    route, load_table = routed(in_flight)
    return [backend.id for backend in with_adapter(route, there, load_table).backends]


def test_who_has_it_comes_first() -> None:
    assert order({"a": 0, "b": 1, "c": 2}, {"c"}) == ["c", "a", "b"]


def test_but_not_when_it_carries_much_more() -> None:
    assert order({"a": 0, "b": SPREAD}, {"b"}) == ["b", "a"]
    assert order({"a": 0, "b": SPREAD + 1}, {"b"}) == ["a", "b"]


def test_who_has_come_back_lately_is_spared_though_it_has_it() -> None:
    route, load_table = routed({"a": 0, "b": 0}, warming="a")
    assert [backend.id for backend in with_adapter(route, {"a"}, load_table).backends] == ["b", "a"]


def test_who_cannot_is_out_and_says_why() -> None:
    route, load_table = routed({"a": 0, "b": 1}, {"a": "all slots in use"})
    placed = with_adapter(route, {"b"}, load_table)
    assert placed.explanation().sentence() == ("least_load: b (in_flight=1, share=1, adapter_absent=0); excluded a: all slots in use")
    nobody, load_table = routed({"a": 0, "b": 0}, {"a": "no", "b": "no"})
    assert with_adapter(nobody, (), load_table).backends == []


@given(st.fixed_dictionaries(dict.fromkeys(IDS, st.integers(0, 30))), st.sets(st.sampled_from(IDS)), st.sets(st.sampled_from(IDS)))
def test_laws(in_flight: dict[str, int], there: set[str], unable: set[str]) -> None:
    there = there - unable
    route, load_table = routed(in_flight, dict.fromkeys(unable, "no"))
    placed = with_adapter(route, there, load_table)
    assert {backend.id for backend in placed.backends} == set(IDS) - unable
    if placed.backends:
        assert in_flight[placed.backends[0].id] <= min(in_flight[backend.id] for backend in placed.backends) + SPREAD
    costs = dict(zip([backend.id for backend in route.backends], route.costs, strict=True))
    assert placed.costs == tuple(costs[backend.id] for backend in placed.backends)
    before = [backend.id for backend in route.backends]
    for group in (there, set(IDS) - there):
        kept = [backend.id for backend in placed.backends if backend.id in group]
        near = [name for name in before if name in group]
        assert sorted(kept) == sorted(near)
        if group is not there:
            assert kept == near  # the policy's own order
