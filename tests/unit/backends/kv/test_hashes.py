"""The block hashes of engines: golden vectors of real vLLM and SGLang, and blocks recorded from them."""

import pytest

from backends.kv.events import Stored, decode
from backends.kv.hashes import (
    MAX_TRIED_TOKENS,
    Digest,
    Recognition,
    recognised,
    sglang_block,
    sglang_on_the_wire,
    vllm_block,
    vllm_on_the_wire,
    vllm_sha256,
    vllm_sha256_cbor,
)
from tests.kv_events import recorded

FIRST, SECOND = range(1, 17), range(17, 33)
SALT = (("cache_salt", "tenant-a"),)


@pytest.mark.req("ROUTERS-12")
@pytest.mark.parametrize(
    ("digest", "first", "second", "salted"),
    [
        (vllm_sha256, 1403909460543360175, 1643945449041937783, 14725353451287653808),
        (vllm_sha256_cbor, 8866452693264111234, 807986237951177663, 5068484237151326159),
    ],
)
def test_vllm(digest: Digest, first: int, second: int, salted: int) -> None:
    block = vllm_block(digest, None, FIRST)
    assert vllm_on_the_wire(block) == first
    assert vllm_on_the_wire(vllm_block(digest, block, SECOND)) == second
    assert vllm_on_the_wire(vllm_block(digest, None, FIRST, SALT)) == salted


@pytest.mark.req("ROUTERS-12")
def test_sglang() -> None:
    page = sglang_block(None, [1, 2, 3, 4])
    for digest, signed in (
        (page, -3488128144981237669),
        (sglang_block(page, [5]), -3787494577174227566),
        (sglang_block(None, [1, 2, 3, 4], "tenant-a"), 3718046898735569995),
    ):
        assert sglang_on_the_wire(digest) == signed % 2**64


def roots(engine: str) -> list[Stored]:
    events = [event for _, payload in recorded(engine) for event in decode(payload).events]
    return [event for event in events if isinstance(event, Stored) and event.parent is None]


@pytest.mark.req("ROUTERS-12")
def test_every_recorded_chain_of_vllm_is_computed_block_by_block() -> None:
    computed = 0
    for event in roots("vllm-0.32.0"):
        if event.lora is not None:
            continue  # the adapter's path is part of the hash and not of the event
        parent = None
        keys = (("cache_salt", event.salt),) if event.salt else None
        for at, expected in enumerate(event.hashes):
            tokens = [t for t in event.tokens[at * event.block_size :][: event.block_size] if isinstance(t, int)]
            parent = vllm_block(vllm_sha256, parent, tokens, keys)
            keys = None
            assert vllm_on_the_wire(parent) == expected
            computed += 1
    assert computed == 59


def test_how_an_engine_hashes_is_recognised() -> None:
    assert {recognised(event) for event in roots("vllm-0.32.0") if event.lora is None} == {"vllm-sha256"}
    assert [recognised(event) for event in roots("sglang-0.5.23")] == ["sglang"]
    cbor = vllm_on_the_wire(vllm_block(vllm_sha256_cbor, None, FIRST, SALT))
    assert recognised(Stored([cbor], None, list(FIRST), 16, salt="tenant-a")) == "vllm-sha256_cbor"


@pytest.mark.parametrize(
    "event",
    [
        Stored([1403909460543360175], 3, list(FIRST), 16),
        Stored([1403909460543360175], None, list(FIRST), 16, lora="a"),
        Stored([1403909460543360175], None, list(FIRST), 16, by_tokens=False),
        Stored([1403909460543360175], None, [-1, *SECOND[1:]], 16),
        Stored([1403909460543360175], None, [(1, 2)] * 16, 16),
        Stored([1], None, list(FIRST), 16),
        Stored([], None, [], 16),
    ],
    ids=["child", "adapter", "images", "negative", "pairs", "other hash", "empty"],
)
def test_blocks_that_say_nothing_are_not_taken_for_something(event: Stored) -> None:
    assert recognised(event) == ""


def test_recognition_gives_up_and_costs_nothing_then() -> None:
    found = Recognition()
    for _ in range(40):
        found.look(Stored([1], None, list(FIRST), 16))
    found.look(Stored([1403909460543360175], None, list(FIRST), 16))
    assert found.name == ""
    found = Recognition()
    found.look(Stored([1403909460543360175], None, list(FIRST), 16))
    found.look(Stored([1], None, list(FIRST), 16))
    assert found.name == "vllm-sha256"


def test_blocks_too_large_to_hash_in_passing_are_left_alone() -> None:
    for size, name in ((MAX_TRIED_TOKENS, "vllm-sha256"), (MAX_TRIED_TOKENS + 1, "")):
        tokens = list(range(size))
        assert recognised(Stored([vllm_on_the_wire(vllm_block(vllm_sha256, None, tokens))], None, list(tokens), size)) == name
