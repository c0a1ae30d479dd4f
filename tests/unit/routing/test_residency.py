"""Who has the adapter comes first, within a bound; who cannot is out with a reason; the policy's order stands otherwise."""

import random

from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Ask, Endpoint
from routing.fleet import Backend, Pool, State
from routing.load import Load
from routing.residency import SPREAD, with_adapter
from routing.schedule import Route, schedule

ASK = Ask(Endpoint.CHAT, "m", b"{}", False, False, 1, 10, None)
IDS = ["a", "b", "c", "d"]


def routed(in_flight: dict[str, int]) -> tuple[Route, Load]:
    backends = tuple(Backend(name, "p", State.UP, "") for name in in_flight)
    load = Load(in_flight)
    load.in_flight.update(in_flight)
    pool = Pool("p", "m", "1", "vllm", backends, up=backends)
    return schedule(ASK, pool, load, 0.0, random.Random(1), "least_load"), load


def order(in_flight: dict[str, int], there: set[str], unable: dict[str, str] | None = None) -> list[str]:
    route, load = routed(in_flight)
    return [backend.id for backend in with_adapter(route, there, unable or {}, load).backends]


def test_who_has_it_comes_first() -> None:
    assert order({"a": 0, "b": 1, "c": 2}, {"c"}) == ["c", "a", "b"]


def test_but_not_when_it_carries_much_more() -> None:
    assert order({"a": 0, "b": SPREAD}, {"b"}) == ["b", "a"]
    assert order({"a": 0, "b": SPREAD + 1}, {"b"}) == ["a", "b"]


def test_who_has_come_back_lately_is_spared_though_it_has_it() -> None:
    backends = tuple(Backend(name, "p", State.UP, "", 0.0 if name == "a" else None) for name in "ab")
    load = Load("ab")
    route = schedule(ASK, Pool("p", "m", "1", "vllm", backends, up=backends), load, 1.0, random.Random(1), "least_load")
    assert [backend.id for backend in with_adapter(route, {"a"}, {}, load).backends] == ["b", "a"]


def test_who_cannot_is_out_and_says_why() -> None:
    route, load = routed({"a": 0, "b": 1})
    placed = with_adapter(route, {"b"}, {"a": "all slots in use"}, load)
    assert placed.explanation().sentence() == ("least_load: b (in_flight=1, share=1, adapter_absent=0); excluded a: all slots in use")
    nobody = with_adapter(route, (), {"a": "no", "b": "no"}, load)
    assert nobody.backends == []


@given(st.fixed_dictionaries(dict.fromkeys(IDS, st.integers(0, 30))), st.sets(st.sampled_from(IDS)), st.sets(st.sampled_from(IDS)))
def test_laws(in_flight: dict[str, int], there: set[str], unable: set[str]) -> None:
    there = there - unable
    route, load = routed(in_flight)
    placed = with_adapter(route, there, dict.fromkeys(unable, "no"), load).backends
    assert {backend.id for backend in placed} == set(IDS) - unable
    if placed:
        assert in_flight[placed[0].id] <= min(in_flight[backend.id] for backend in placed) + SPREAD
    before = [backend.id for backend in route.backends if backend.id not in unable]
    for group in (there, set(IDS) - there):
        kept = [backend.id for backend in placed if backend.id in group]
        near = [name for name in before if name in group]
        assert sorted(kept) == sorted(near)
        if group is not there:
            assert kept == near  # the policy's own order
