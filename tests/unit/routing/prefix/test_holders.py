import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.holders import SHARD_BLOCKS, BlockHolders

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.lists(st.integers(0, 20), max_size=6)),
        st.tuples(st.just("discard"), st.integers(0, 3), st.lists(st.integers(0, 20), max_size=6)),
        st.tuples(st.just("reopen"), st.integers(0, 3), st.just([])),
        st.tuples(st.just("refresh"), st.just(0), st.lists(st.integers(0, 20), max_size=6)),
    ),
    max_size=60,
)


def held(holders: BlockHolders, slot: int) -> set[int]:
    return {block for shard in holders.shards for block, bits in shard.items() if bits & holders.alive & 1 << slot}


@settings(deadline=None)
@given(OPS)
def test_a_slot_holds_what_was_added_to_it_since_it_was_opened_and_not_discarded(ops: list[tuple[str, int, list[int]]]) -> None:
    holders = BlockHolders(1_000)
    slots = [holders.open() for _ in range(4)]
    expected: list[set[int]] = [set() for _ in slots]
    for op, who, blocks in ops:
        if op == "add":
            again = holders.add(1 << slots[who], blocks)
            assert sorted(again) == sorted([*(set(blocks) & expected[who]), *_beyond_first(blocks, expected[who])])
            expected[who].update(blocks)
        elif op == "discard":
            holders.discard(1 << slots[who], blocks)
            expected[who].difference_update(blocks)
        elif op == "refresh":
            holders.refresh(blocks)
        else:
            holders.close(slots[who])
            slots[who] = holders.open()
            expected[who] = set()
        assert len(set(slots)) == 4
        assert [held(holders, slot) for slot in slots] == expected


def _beyond_first(blocks: list[int], known: set[int]) -> list[int]:
    return [block for block in set(blocks) for _ in range(blocks.count(block) - 1)]


@settings(deadline=None)
@given(st.integers(1, 300), st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=50), max_size=30))
def test_the_bound_holds_after_every_insert(bound: int, runs: list[list[int]]) -> None:
    holders = BlockHolders(bound)
    bit = 1 << holders.open()
    for run in runs:
        holders.add(bit, run)
        assert holders.blocks <= bound


@pytest.mark.parametrize("bound", [SHARD_BLOCKS, 200_000])
def test_the_bound_is_used(bound: int) -> None:
    holders, rng = BlockHolders(bound), random.Random(1)
    bit = 1 << holders.open()
    for _ in range(0, int(bound * 1.3), 100):
        holders.add(bit, [rng.getrandbits(63) for _ in range(100)])
    assert bound * 0.9 < holders.blocks <= bound
    assert holders.evicted


def test_at_the_bound_dead_entries_go_first_then_what_was_used_longest_ago() -> None:
    holders = BlockHolders(1_600)
    live, dead = holders.open(), holders.open()
    holders.add(1 << live, list(range(800)))
    holders.add(1 << dead, list(range(800, 1600)))
    holders.close(dead)
    holders.add(1 << live, list(range(1600, 2400)))
    assert holders.evicted == 0
    assert held(holders, live) == {*range(800), *range(1600, 2400)}
    holders.refresh(range(100))
    holders.add(1 << live, [5000])
    assert holders.evicted == 100, "a sixteenth"
    assert held(holders, live) >= {5000, *range(100), *range(1600, 2400)}
    assert not held(holders, live) & set(range(700, 800)), "of one prompt the end goes first"


@pytest.mark.req("ROUTERS-9")
def test_slots_that_come_and_go_are_used_again(record_property: Callable[[str, object], None]) -> None:
    holders, rng = BlockHolders(20_000), random.Random(1)
    stay = [holders.open() for _ in range(16)]
    for slot in stay:
        holders.add(1 << slot, [rng.getrandbits(63) for _ in range(1_000)])
    widest = 0
    for _ in range(1_000):
        slot = holders.open()
        holders.add(1 << slot, [rng.getrandbits(63) for _ in range(10)])
        holders.close(slot)
        widest = max(widest, holders.width)
    assert widest <= 16 + 16
    assert holders.evicted == 0
    for _ in range(100):  # what is stored goes on sweeping
        holders.add(1 << stay[0], list(held(holders, stay[0])))
    assert holders.blocks == 16_000
    record_property("figure", f"1,000 holders joined and left: at most {widest} slots for 16 that stay")


def test_a_slot_is_not_used_again_before_its_blocks_are_swept() -> None:
    holders, rng = BlockHolders(200_000), random.Random(1)
    blocks = [rng.getrandbits(63) for _ in range(50_000)]
    first = holders.open()
    holders.add(1 << first, blocks)
    holders.close(first)
    for _ in range(200):
        slot = holders.open()
        assert not held(holders, slot)
        holders.add(1 << slot, [rng.getrandbits(63)])
        holders.close(slot)


def test_an_index_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        BlockHolders(0)


@settings(deadline=None)
@given(st.integers(1, 80), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 20)), max_size=40))
def test_a_slot_of_whole_beginnings_is_used_as_any_other_at_the_bound_and_below_it(bound: int, asked: list[tuple[int, int, int]]) -> None:
    """The walk may end at the first block that the slot holds, but only while no beginning can have been dropped."""
    full, short = BlockHolders(bound), BlockHolders(bound)
    bits = 1 << full.open(), 1 << short.open()
    for family, member, length in asked:
        prompt = [
            *range(family * 1_000, family * 1_000 + 5),
            *range(family * 1_000 + member * 50 + 10, family * 1_000 + member * 50 + length),
        ]
        runs = full.use(bits[0], prompt), short.use(bits[1], prompt, beginnings=True)
        assert full.shards == short.shards
        assert sum(blocks for _, blocks in runs[1]) == len(prompt)
        assert sum(blocks for old, blocks in runs[0] if old) == sum(blocks for old, blocks in runs[1] if old)
