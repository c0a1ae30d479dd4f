"""Adapters of one engine: loaded once, the least recently used unused one goes, none in use does."""

from hypothesis import given
from hypothesis import strategies as st

from routing.simulation.fleet import SimulatedAdapters, adapters_for


def test_the_least_recently_used_goes_and_none_in_use() -> None:
    shelf = SimulatedAdapters(2, 3.0)
    assert shelf.take("a", 0.0) == 3.0
    assert shelf.take("b", 1.0) == 4.0
    assert shelf.take("a", 2.0) == 3.0
    assert shelf.take("c", 5.0) is None
    shelf.give_back("b")
    assert shelf.take("c", 6.0) == 9.0
    assert shelf.there == {"a", "c"}
    shelf.give_back("a")
    assert shelf.take("b", 7.0) is None  # it was taken twice
    shelf.clear()
    assert shelf.there == frozenset()


def test_who_has_no_slot_free_takes_none_while_another_has() -> None:
    shelves = [SimulatedAdapters(1, 1.0), SimulatedAdapters(1, 1.0), SimulatedAdapters(0, 1.0)]
    shelves[0].take("a", 0.0)
    engines = ("one", "two", "none")
    assert adapters_for("b", engines, shelves).unable.keys() == {"one", "none"}
    assert adapters_for("a", engines, shelves).there == ["one"]
    assert adapters_for("a", engines, shelves).unable.keys() == {"none"}
    shelves[1].take("c", 0.0)
    assert adapters_for("b", engines, shelves).unable.keys() == {"none"}  # it waits for a slot somewhere


def test_where_requests_wait_for_a_slot_the_adapter_counts_as_there() -> None:
    shelves = [SimulatedAdapters(1, 1.0), SimulatedAdapters(1, 1.0)]
    shelves[0].take("a", 0.0)
    shelves[0].waiting.append(("b", object()))
    found = adapters_for("b", ("one", "two"), shelves)
    assert (found.there, found.unable) == (["one"], {})
    assert adapters_for("c", ("one", "two"), shelves).unable.keys() == {"one"}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcde"), st.booleans()), max_size=40), st.sampled_from("abcde"))
def test_laws(steps: list[tuple[int, str, bool]], name: str) -> None:
    """Whatever was taken and given back: an engine counts as one with the adapter exactly where a request has used it since it was
    loaded or waits for it, and no such engine is excluded."""
    shelves = [SimulatedAdapters(slots, 1.0) for slots in (1, 2, 0)]
    engines = ("one", "two", "none")
    used: list[tuple[int, str]] = []
    for now, (at, adapter, over) in enumerate(steps):
        if over and used:
            where, gone = used.pop(0)
            shelves[where].give_back(gone)
        elif shelves[at].slots and shelves[at].take(adapter, float(now)) is None:
            shelves[at].waiting.append((adapter, object()))
        elif shelves[at].slots:
            used.append((at, adapter))
    found = adapters_for(name, engines, shelves)
    waits = {engine for engine, shelf in zip(engines, shelves, strict=True) if name in [adapter for adapter, _ in shelf.waiting]}
    holds = {engine for engine, shelf in zip(engines, shelves, strict=True) if name in shelf.there}
    assert set(found.there) == waits | holds
    assert not set(found.there) & found.unable.keys()
    assert "none" in found.unable
    assert len(found.unable) < len(engines)
