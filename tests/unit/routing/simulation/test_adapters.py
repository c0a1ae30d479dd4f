"""Adapters of one engine: loaded once, the least recently used unused one goes, none in use does."""

from hypothesis import given
from hypothesis import strategies as st

from routing.room import NO_SLOT
from routing.simulation.adapters import SimulatedAdapters, adapters_for


def test_the_least_recently_used_goes_and_none_in_use() -> None:
    shelf = SimulatedAdapters(2, 3.0)
    assert shelf.take("a", 0.0) == 3.0
    assert shelf.take("b", 1.0) == 4.0
    assert shelf.take("a", 2.0) == 3.0
    assert shelf.busy
    shelf.give_back("b")
    assert not shelf.busy
    assert shelf.take("c", 6.0) == 9.0
    assert shelf.there == {"a", "c"}
    shelf.give_back("a")
    assert shelf.busy, "it was taken twice"
    shelf.clear()
    assert shelf.there == frozenset()


def test_who_has_no_slot_free_takes_none_until_a_request_ends() -> None:
    shelves = [SimulatedAdapters(1, 1.0), SimulatedAdapters(1, 1.0), SimulatedAdapters(0, 1.0)]
    shelves[0].take("a", 0.0)
    engines = ("one", "two", "none")
    assert adapters_for("b", engines, shelves).unable.keys() == {"one", "none"}
    assert adapters_for("a", engines, shelves).there == ["one"]
    assert adapters_for("a", engines, shelves).unable.keys() == {"none"}
    shelves[1].take("c", 0.0)
    unable = adapters_for("b", engines, shelves).unable
    assert [unable[engine].startswith(NO_SLOT) for engine in engines] == [True, True, False]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcde"), st.booleans()), max_size=40), st.sampled_from("abcde"))
def test_laws(steps: list[tuple[int, str, bool]], name: str) -> None:
    """Whatever was taken and given back: an engine counts as one with the adapter exactly where a request has used it since it was
    loaded, no such engine is excluded, and every change that may let a waiting request go is counted."""
    shelves = [SimulatedAdapters(slots, 1.0) for slots in (1, 2, 0)]
    engines = ("one", "two", "none")
    used: list[tuple[int, str]] = []
    for now, (at, adapter, over) in enumerate(steps):
        before = adapters_for(name, engines, shelves)
        moves = sum(shelf.moves for shelf in shelves)
        if over and used:
            where, gone = used.pop(0)
            shelves[where].give_back(gone)
        elif shelves[at].slots and (shelves[at].comes(adapter) or not shelves[at].busy):
            shelves[at].take(adapter, float(now))
            used.append((at, adapter))
        after = adapters_for(name, engines, shelves)
        assert sum(shelf.moves for shelf in shelves) > moves or not (before.unable.keys() - after.unable.keys())
    found = adapters_for(name, engines, shelves)
    assert set(found.there) == {engine for engine, shelf in zip(engines, shelves, strict=True) if name in shelf.there}
    assert not set(found.there) & found.unable.keys()
    assert "none" in found.unable
