from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.holders import GENERATIONS, MAX_GENERATIONS, BlockHolders, RecentUse


class Cache:
    """An approximate one, and its slots."""

    def __init__(self, capacity: int) -> None:
        self.holders = BlockHolders(100_000)
        self.use = RecentUse()
        self.use.resize(capacity, self.holders.close)
        self.opened = 0

    def touch(self, chain: list[int]) -> None:
        self.use.touch(self.holders, chain, self.holders.open, self.holders.close)

    @property
    def held(self) -> set[int]:
        return {block for shard in self.holders.shards for block, bits in shard.items() if bits & self.holders.alive}


def chain(prompt: tuple[int, int, int]) -> list[int]:
    """Two levels of shared beginnings."""
    family, member, length = prompt
    return [
        *range(family * 1_000, family * 1_000 + 4),
        *range(family * 1_000 + member * 50 + 10, family * 1_000 + member * 50 + 10 + length),
    ]


class Lru:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: OrderedDict[int, None] = OrderedDict()

    def touch(self, blocks: list[int]) -> None:
        for block in reversed(blocks[: self.capacity]):
            self.order[block] = None
            self.order.move_to_end(block)
        while len(self.order) > self.capacity:
            self.order.popitem(last=False)


prompts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 20)), max_size=80)


@settings(max_examples=300, deadline=None)
@given(prompts, st.integers(1, 200))
def test_it_holds_what_a_true_lru_holds_or_less_by_a_generation_at_most(asked: list[tuple[int, int, int]], capacity: int) -> None:
    cache, most = Cache(capacity), Lru(capacity)
    least = Lru(max(1, capacity - capacity // GENERATIONS - 1 - 24))
    for prompt in asked:
        for one in (cache, most, least):
            one.touch(chain(prompt))
        assert cache.held <= set(most.order)
        assert cache.use.blocks == len(cache.held) <= capacity
        if capacity > 60 and cache.holders.width < MAX_GENERATIONS:
            assert cache.held >= set(least.order)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 20))), max_size=80),
    st.integers(1, 200),
)
def test_blocks_that_others_use_take_places_too(steps: list[tuple[bool, tuple[int, int, int]]], capacity: int) -> None:
    """Beside prompts of another kind, told of by their number only, it holds no more than a true LRU does that sees both, and what was used
    within the last seven eighths of the capacity."""
    cache, most = Cache(capacity), Lru(capacity)
    least = Lru(max(1, capacity - capacity // GENERATIONS - 1 - 24))
    others = 0
    for own, prompt in steps:
        if own:
            for one in (cache, most, least):
                one.touch(chain(prompt))
        else:
            count = len(chain(prompt))
            cache.use.others(count, cache.holders.close)
            for lru in (most, least):
                for _ in range(count):  # a block at a time: more than the capacity at once
                    others -= 1
                    lru.touch([others])
        assert cache.held <= set(most.order)
        assert cache.use.blocks == sum([blocks for _, blocks in cache.use.generations()]) <= capacity
        if capacity > 60 and cache.holders.width < MAX_GENERATIONS:
            assert cache.held >= {block for block in least.order if block >= 0}


def test_a_conversation_in_use_outlives_any_number_of_others() -> None:
    cache = Cache(1_000)
    for _ in range(100):
        cache.touch(list(range(40)))
        cache.use.others(800, cache.holders.close)
    assert cache.held == set(range(40))
    cache.use.others(1_000, cache.holders.close)
    assert not cache.held


def test_one_conversation_that_goes_on_pushes_nothing_else_out() -> None:
    cache = Cache(1_000)
    cache.touch(list(range(10_000, 10_400)))
    for turn in range(200):
        cache.touch(list(range(400 + turn)))
    assert cache.held == {*range(599), *range(10_000, 10_400)}


def test_a_prompt_longer_than_the_cache_is_held_as_far_as_it_goes() -> None:
    cache = Cache(10)
    cache.touch(list(range(50)))
    assert cache.held == set(range(10))


def test_a_smaller_cache_holds_less_at_once_and_none_holds_nothing() -> None:
    cache = Cache(100)
    for prompt in range(10):
        cache.touch(list(range(prompt * 10, prompt * 10 + 10)))
    cache.use.resize(50, cache.holders.close)
    assert cache.held <= set(range(50, 100))
    assert cache.held
    cache.use.resize(0, cache.holders.close)
    assert not cache.held


def test_slots_stay_few() -> None:
    cache = Cache(1_000)
    for prompt in range(5_000):
        cache.touch(list(range(prompt * 7 % 3_000, prompt * 7 % 3_000 + 40)))
    assert cache.holders.width <= MAX_GENERATIONS + 8
