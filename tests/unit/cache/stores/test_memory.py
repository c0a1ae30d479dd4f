"""Answers in memory: bounded, apart by owner, and purged by what a selection says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.answers import Answer
from cache.ports import Selection
from cache.stores.memory import OWNER_SHARE, MemoryAnswers
from domain.usage import NO_USAGE

NOW = 1_000.0


def answer(key: str, owner: str = "acme", *, size: int = 100, at: float = NOW, **rest: str) -> Answer:
    return Answer(owner, key.encode(), b"x" * size, NO_USAGE, rest.pop("model", "m"), at, at + 60, **rest)


def test_an_answer_is_found_until_it_expires() -> None:
    store = MemoryAnswers(100_000)
    store.put_now(answer("a"))
    assert store.get_now(b"a", "acme", NOW + 59) is not None
    assert store.get_now(b"a", "acme", NOW + 60) is None
    assert (len(store), store.bytes) == (0, 0)


@pytest.mark.req("R50")
def test_another_owner_finds_nothing() -> None:
    store = MemoryAnswers(100_000)
    store.put_now(answer("a"))
    assert store.get_now(b"a", "beta", NOW) is None


def test_the_least_recently_used_makes_room() -> None:
    one = answer("a").size
    store = MemoryAnswers(3 * one)
    for key in "abc":
        store.put_now(answer(key))
    store.get_now(b"a", "acme", NOW)
    store.put_now(answer("d"))
    assert [key for key in "abcd" if store.get_now(key.encode(), "acme", NOW)] == ["a", "c", "d"]
    assert store.evicted == 1


def test_an_owner_that_fills_the_store_evicts_its_own_answers() -> None:
    one = answer("b0").size
    store = MemoryAnswers(10 * one)
    for number in range(4):
        store.put_now(answer(f"b{number}", "beta"))
    for number in range(10, 90):
        store.put_now(answer(f"{number}"))
    assert store.owner_bytes("beta") == 4 * one
    assert store.owner_bytes("acme") == 6 * one


def test_an_answer_larger_than_a_share_is_not_kept() -> None:
    store = MemoryAnswers(1_000)
    store.put_now(answer("a", size=int(1_000 * OWNER_SHARE)))
    assert len(store) == 0


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(owner="acme"), ["b"]),
        (Selection(owner="acme", model="n"), ["a", "b", "u"]),
        (Selection(owner="acme", user="ann"), ["a", "b", "n"]),
        (Selection(owner="acme", namespace="s"), ["b", "n", "u"]),
        (Selection(owner="acme", before=NOW), ["a", "b", "n", "u"]),
        (Selection(owner="acme", before=NOW + 1), ["b"]),
    ],
)
def test_a_purge_removes_what_it_selects(selection: Selection, left: list[str]) -> None:
    store = MemoryAnswers(100_000)
    for kept in (answer("a", namespace="s"), answer("b", "beta"), answer("n", model="n"), answer("u", user="ann")):
        store.put_now(kept)
    assert store.purge_now(selection) == 4 - len(left)
    assert [
        key for key, owner in zip("abnu", ("acme", "beta", "acme", "acme"), strict=True) if store.get_now(key.encode(), owner, NOW)
    ] == left


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["x", "y"]), st.integers(0, 900), st.booleans()), max_size=60))
def test_the_store_never_exceeds_its_bytes_and_counts_them(steps: list[tuple[str, str, int, bool]]) -> None:
    store = MemoryAnswers(4_000)
    for key, owner, size, reads in steps:
        if reads:
            store.get_now(f"{owner}{key}".encode(), owner, NOW)
        else:
            store.put_now(answer(f"{owner}{key}", owner, size=size))
        kept = [store.get_now(f"{owner}{key}".encode(), owner, NOW) for owner in "xy" for key in "abcdefgh"]
        assert store.bytes == sum(one.size for one in kept if one is not None) <= 4_000
        assert len(store) == sum(one is not None for one in kept)
