"""The coarse KV cache: pages are conserved, prefixes found are whole, what goes first is the end of what was used longest ago."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from routing.simulation.kv_cache import SimulatedKvCache, pages


def test_a_prefix_is_found_again_and_its_end_goes_first() -> None:
    cache = SimulatedKvCache(total=8, span=2)
    gone: list[Sequence[int]] = []
    cache.removed = gone.append
    assert cache.admit([1, 2, 3], 7) == 0
    assert cache.publish([1, 2, 3], 0) == 3
    cache.release([1, 2, 3], 3, 7)
    assert cache.matched([1, 2, 3, 4]) == 3
    assert cache.admit([9], 4) == 0
    assert gone == [[3]]
    assert cache.matched([1, 2, 3]) == 2


def test_no_room_changes_nothing() -> None:
    cache = SimulatedKvCache(total=4, span=1)
    assert cache.admit([1], 3) == 0
    assert cache.admit([2], 2) == -1
    assert (cache.free, cache.used) == (1, 3)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.booleans()), max_size=40))
def test_pages_are_conserved(steps: list[tuple[int, int, bool]]) -> None:
    cache = SimulatedKvCache(total=20, span=2)
    held: list[tuple[list[int], int, int]] = []
    for family, blocks, ends in steps:
        chain = [family * 100 + i for i in range(blocks)]
        if ends and held:
            cache.release(*held.pop(0))
        needed = blocks * 2 + 1
        if cache.admit(chain, needed) >= 0:
            held.append((chain, cache.publish(chain, cache.matched(chain)), needed))
        assert 0 <= cache.free <= cache.room <= cache.total
    for one in held:
        cache.release(*one)
    assert cache.used == 0


def test_pages_round_up() -> None:
    assert [pages(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_blocks_of_another_cache_bring_their_memory_and_give_it_back() -> None:
    cache = SimulatedKvCache(10, 2)
    cache.release((1, 2), cache.publish((1, 2), cache.admit((), 4)), 4)
    assert cache.bring((2, 3, 4)) == [3, 4]
    assert (cache.total, cache.room, cache.matched((3, 4))) == (14, 14, 2)
    assert cache.by_use() == [2, 1, 3, 4]
    assert cache.admit((1, 2), 12) == 2, "brought blocks are evicted like others"
    assert cache.shrink(10) == [4]
    assert (cache.total, cache.room) == (12, 0), "memory in use stays"
    cache.release((1, 2), 2, 12)
    cache.shrink(10, due=11)
    assert (cache.total, cache.room) == (11, 11), "what is due stays"
    cache.shrink(10)
    assert (cache.total, cache.room) == (10, 10)
    assert list(cache.blocks) == [1, 2]
