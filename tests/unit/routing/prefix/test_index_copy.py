"""A copied index matches what the first one matches of engines without events, and forgets it in the same order."""

import random

import pytest

from routing.prefix.index import PrefixIndex
from routing.prefix.index_copy import CopiedBackend, IndexCopy, take_over

CAPACITY = 400


def chain(number: int, blocks: int = 20) -> list[int]:
    return [hash((number, at)) for at in range(blocks)]


def copied(index: PrefixIndex, max_blocks: int = 1 << 20) -> list[CopiedBackend]:
    copy = IndexCopy(index, max_blocks)
    for _ in copy.parts():
        pass
    return copy.backends()


def taken(backends: list[CopiedBackend]) -> PrefixIndex:
    index = PrefixIndex(100_000)
    for backend in backends:
        index.size(backend.id, backend.capacity)
        take_over(index, backend, 0.0)
    return index


def used(index: PrefixIndex, prompts: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(prompts):
        index.touch(rng.choice("ab"), chain(rng.randrange(60)), 0.0)


def filled(prompts: int = 200) -> PrefixIndex:
    index = PrefixIndex(100_000)
    for backend_id in "ab":
        index.size(backend_id, CAPACITY)
    used(index, prompts)
    return index


def held(index: PrefixIndex) -> list[dict[str, int]]:
    return [dict(index.match(chain(number), 0.0, "ab").blocks) for number in range(60)]


def test_a_copy_matches_what_the_first_one_matches() -> None:
    index = filled()
    other = taken(copied(index))
    assert held(other) == held(index)
    assert any(held(index))
    assert [entry[:2] for entry in other.assumed()] == [entry[:2] for entry in index.assumed()]
    assert sum(len(backend.generations) for backend in copied(index)) > 4


@pytest.mark.parametrize("before", [0, 1, 3, 20])
def test_nothing_of_a_copy_is_lost_to_prompts_that_came_before_it_was_taken(before: int) -> None:
    """A new worker is told of its siblings' requests before it has the copy, and the prompts begin alike."""
    index = PrefixIndex(100_000)
    index.size("a", 100_000)
    prompts = [[*chain(0, 8), *chain(number + 1, 12)] for number in range(200)]
    for prompt in prompts:
        index.touch("a", prompt, 0.0)
    other = PrefixIndex(100_000)
    other.size("a", 100_000)
    for prompt in prompts[:before]:
        other.touch("a", prompt, 0.0)
    (backend,) = copied(index)
    take_over(other, backend, 0.0)
    assert [other.match(prompt, 0.0, "a").blocks for prompt in prompts] == [{"a": 20}] * 200


def test_prompts_that_came_in_the_middle_of_a_copy_are_whole_once_they_come_again() -> None:
    index = PrefixIndex(100_000)
    index.size("a", 10_000)
    for number in range(50):
        index.touch("a", chain(number), 0.0)
    late = [[*chain(number, 5), *chain(1000 + number, 40)] for number in range(50)]
    copy = IndexCopy(index, 1 << 20)
    for at, _ in enumerate(copy.parts()):
        if at == len(index.shards) // 2:
            for prompt in late:
                index.touch("a", prompt, 0.0)
    other = PrefixIndex(100_000)
    for backend in copy.backends():
        other.size(backend.id, backend.capacity)
        take_over(other, backend, 0.0)
    for prompt in late:
        other.touch("a", prompt, 0.0)
    assert [other.match(prompt, 0.0, "a").blocks for prompt in late] == [{"a": 45}] * 50


def test_it_forgets_the_same_first() -> None:
    index = filled()
    other = taken(copied(index))
    for number in range(100, 110):
        for each in (index, other):
            each.touch("a", chain(number), 0.0)
    ours, theirs = held(index), held(other)
    missing = sum(mine != yours for mine, yours in zip(ours, theirs, strict=True))
    assert missing <= 6, "a generation more or less"


def test_what_events_tell_is_not_copied() -> None:
    index = filled()
    index.size("a", CAPACITY, exact=True)
    index.stored("a", chain(7))
    assert [backend.id for backend in copied(index)] == ["b"]


def test_a_copy_is_bounded_and_prefers_what_was_used_last() -> None:
    index = filled()
    last = chain(999)
    for backend_id in "ab":
        index.touch(backend_id, last, 0.0)
    small = copied(index, 200)
    assert 20 < sum(len(generation) // 8 for backend in small for generation in backend.generations) <= 200
    assert taken(small).match(last, 0.0, "ab").blocks == {"a": 20, "b": 20}
    assert copied(index, 0) == []
    assert copied(PrefixIndex(1024)) == []


def test_what_is_forgotten_while_the_copy_is_made_is_not_in_it() -> None:
    index = filled()
    copy = IndexCopy(index, 1 << 20)
    for _ in copy.parts():
        pass
    index.forget("a")
    assert [backend.id for backend in copy.backends()] == ["b"]


def test_bytes_that_are_no_blocks_are_refused() -> None:
    index = PrefixIndex(1024)
    index.size("a", 10)
    with pytest.raises(ValueError):
        take_over(index, CopiedBackend("a", 10, [b"1234567"]), 0.0)
