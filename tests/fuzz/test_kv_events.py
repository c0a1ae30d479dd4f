"""KV events of engines: sane blocks or a refusal in words, the same in both wire forms, and no stream is harmed by any of it."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.kv.blocks import HeldBlocks
from backends.kv.events import MASK, MAX_BLOCK_SIZE, MAX_NAME_CHARS, Batch, Cleared, Removed, Stored, decode
from backends.kv.stream import KvStream
from tests.fuzz.mutation import Target
from tests.kv_events import CLEARED, packed, recorded, removed, stored

SALT = "a-salt-that-is-secret"
FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx")
"""Of a stored event, in the order of the array form."""
pack = msgspec.msgpack.encode
PIECES = [
    *map(
        pack, (None, True, -1, 0, 2**64 - 1, -(2**63), 1.5, "", "GPU", "CPU", SALT, b"", bytes(32), [], {}, [[]], [None], "type", *FIELDS)
    ),
    pack("BlockStored"),
    pack("BlockRemoved"),
    pack("AllBlocksCleared"),
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc1",
    b"\xdb\x7f\xff\xff\xff",
    b"\x91" * 200,
    b"\xc7\x0c\xff",
    b"\xd9\x02\xff\xfe",
]
SALTED = packed(stored([1, 2], [5, 6, 7, 8], block_size=2, extra_keys=[[SALT], None], cache_salt=SALT))
SEEDS = [payload for engine in ("vllm-0.32.0", "sglang-0.5.23") for _, payload in recorded(engine)]
SEEDS += [
    SALTED,
    packed(CLEARED, removed(1, -1, bytes(32))),
    pack([1.0, [["BlockStored", [1, -1], None, [5, 6, 7, 8], 2, None, "GPU", "a", [None, ["a"]], 0]], 0]),
]
EVENTS = Target("kv_events", PIECES, SEEDS)


def events(payload: bytes) -> str:
    stream = KvStream(HeldBlocks(max_blocks=1_000), can_replay=False)
    stream.connected()
    stream.batch(0, SALTED)
    stream.batch(1, payload)
    try:
        batch = decode(payload)
    except ValueError as error:
        assert not stream.trusted, "what cannot be read may have removed blocks"
        assert 0 < len(str(error)) < 400
        assert str(error).isprintable()
        assert SALT not in f"{error} {stream.reason}"
        assert error.__cause__ is None, "the cause holds what was sent"
        return " ".join(word for word in str(error).split() if word.isalpha())
    sane(batch)
    assert SALT not in repr(batch)
    return "ok " + " ".join(sorted({type(one).__name__ for one in batch.events}))


def sane(batch: Batch) -> None:
    assert 0 <= batch.at < 1e12
    for one in batch.events:
        if isinstance(one, Cleared):
            continue
        assert all(type(block) is int and 0 <= block <= MASK for block in one.hashes)
        assert 0 < len(one.medium) <= MAX_NAME_CHARS
        if isinstance(one, Stored):
            assert 1 <= one.block_size <= MAX_BLOCK_SIZE
            assert len(one.tokens) <= len(one.hashes) * one.block_size
            assert not one.by_tokens or len(one.tokens) == len(one.hashes) * one.block_size
            assert one.parent is None or 0 <= one.parent <= MASK
            assert one.salt != ""
            assert all(len(name) <= MAX_NAME_CHARS for name in (one.lora or "", one.salt or ""))
        else:
            assert isinstance(one, Removed)


ODD = [
    None,
    True,
    -1,
    0,
    1,
    2**63,
    2**64 - 1,
    -(2**63),
    1.5,
    float("nan"),
    float("inf"),
    "",
    "GPU",
    SALT,
    "x" * 300,
    b"",
    bytes(8),
    bytes(32),
    bytes(65),
    [],
    {},
    [[]],
]


def changed(rng: random.Random, value: Any) -> Any:
    """A value with one thing in it replaced."""
    if isinstance(value, list | dict) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        at = rng.choice(list(keys))
        copy = value.copy()
        copy[at] = changed(rng, value[at])
        if rng.random() < 0.05:
            del copy[at]
        return copy
    return rng.choice(ODD)


def grown(rng: random.Random) -> bytes:
    value = msgspec.msgpack.decode(rng.choice(SEEDS))
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = changed(rng, value)
    return pack(value)


@pytest.mark.req("ROUTERS-11")
@pytest.mark.parametrize("path", EVENTS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    events(path.read_bytes())


@pytest.mark.req("ROUTERS-11")
def test_events_are_sane_or_refused_in_words(record_property: Any) -> None:
    record_property("figure", EVENTS.run(events, 3_000, grown))


def both_forms(data: bytes) -> str:
    """The input is a map event; what it says as an array is the same."""
    event = msgspec.msgpack.decode(data)
    results = []
    for form in (event, [event["type"], *(event.get(field) for field in FIELDS)]):
        try:
            results.append(decode(pack([1.0, [form], 0])).events)
        except ValueError as error:
            results.append(str(error).partition(" - at ")[0])
    if isinstance(results[0], str) or isinstance(results[1], str):
        assert isinstance(results[0], str) == isinstance(results[1], str), results
        return str(results[0])
    assert pack(results[0]) == pack(results[1])
    return "ok"


def one_event(rng: random.Random) -> bytes:
    event = {field: None for field in FIELDS} | {"lora_id": None} | stored([1, -1], [5, 6, 7, 8], block_size=2)
    event |= {"extra_keys": rng.choice(([[SALT], None], [None, None], [["a"], ["a"]], None)), "lora_name": rng.choice((None, "a"))}
    for _ in range(rng.randrange(3)):
        at = rng.choice(FIELDS)
        event[at] = changed(rng, event[at])
    return pack(event)


@pytest.mark.req("ROUTERS-11")
def test_both_wire_forms_say_the_same(record_property: Any) -> None:
    record_property("figure", EVENTS.run(both_forms, 2_000, one_event, damage=False))
