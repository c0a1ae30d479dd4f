import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simengine.batching import Holding, PagedKvCache, block_hashes

BLOCKS = 24
BLOCK = 4
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
moves = st.lists(st.tuples(st.sampled_from(["admit", "publish", "grow", "release", "clear"]), st.integers(0, 5), prompts), max_size=80)


@given(moves)
def test_blocks_are_conserved_and_every_hit_was_published(history: list[tuple[str, int, list[int]]]) -> None:
    cache = PagedKvCache(BLOCKS)
    held: dict[int, tuple[Holding, list[bytes]]] = {}
    published: set[bytes] = set()
    for word, n, prompt in history:
        hashes = block_hashes(prompt, BLOCK, "m")
        if word == "admit" and n not in held:
            admitted = cache.admit(hashes, len(hashes) + 1)
            if admitted is not None:
                held[n] = (admitted[0], hashes)
                assert set(hashes[: admitted[1]]) <= published
        elif word == "publish" and n in held:
            cache.publish(*held[n])
            published.update(held[n][1])
        elif word == "grow" and n in held:
            cache.grow(held[n][0], 1)
        elif word == "release" and n in held:
            cache.release(held.pop(n)[0])
        elif word == "clear":
            cache.clear()
        assert cache.free + cache.used + cache.evictable == BLOCKS
        assert cache.free >= 0
        shared = {block for holding, _ in held.values() for block in holding.shared}
        assert cache.used == sum(holding.private for holding, _ in held.values()) + len(shared)
    for holding, _ in held.values():
        cache.release(holding)
    cache.clear()
    assert cache.free == BLOCKS


@pytest.mark.req("R5")
def test_salt_model_and_prefix_all_decide() -> None:
    tokens = list(range(32))
    chains = [block_hashes(tokens, BLOCK, *salts) for salts in (("m", ""), ("m", "a"), ("m", "b"), ("n", "a"))]
    for one, other in itertools.combinations(chains, 2):
        assert not set(one) & set(other)
    assert block_hashes([*tokens, 9], BLOCK, "m", "") == chains[0]
    changed = block_hashes([99, *tokens[1:]], BLOCK, "m", "")
    assert not set(changed) & set(chains[0])


def test_what_is_used_is_never_evicted_and_the_oldest_goes_first() -> None:
    cache = PagedKvCache(6)
    first, second = (block_hashes([n] * 8, BLOCK, "m") for n in (1, 2))
    for hashes in (first, second):
        holding, _ = cache.admit(hashes, 2) or pytest.fail("no room")
        cache.publish(holding, hashes)
        cache.release(holding)
    assert (cache.matched(first), cache.matched(second)) == (2, 2)
    holding, reused = cache.admit(second, 5) or pytest.fail("no room")
    assert reused == 2
    assert cache.matched(first) == 1  # one block had to go, and it was the end of the older prefix
    assert cache.admit(first, 9) is None
    assert not cache.grow(holding, 2)
