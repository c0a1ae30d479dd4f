"""Adapters of one engine: loaded once, the least recently used unused one goes, none in use does."""

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
