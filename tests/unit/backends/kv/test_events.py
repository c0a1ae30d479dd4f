import contextlib
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kv.events import MAX_BATCH_BYTES, MAX_EVENTS, MAX_HASHES, Cleared, Removed, Stored, decode
from tests.kv_events import CLEARED, packed, recorded, removed, stored


def only(*events: object) -> object:
    (event,) = decode(packed(*events)).events
    return event


def test_what_vllm_sent() -> None:
    found = {shows: decode(payload) for shows, payload in recorded("vllm-0.32.0")}
    root, child = (found[f"BlockStored/{kind}"].events[0] for kind in ("root", "child"))
    assert isinstance(root, Stored)
    assert isinstance(child, Stored)
    assert (root.hashes, root.parent, root.block_size, len(root.tokens), root.by_tokens) == ([16212840530729888457], None, 32, 32, True)
    assert child.parent == root.hashes[0]
    (salted,) = found["BlockStored/salt"].events
    assert isinstance(salted, Stored)
    assert (salted.salt, salted.lora, salted.by_tokens, len(salted.hashes)) == ("tenantA", None, True, 24)
    (lora,) = found["BlockStored/lora"].events
    assert isinstance(lora, Stored)
    assert (lora.salt, lora.lora, lora.by_tokens) == (None, "lora-a", True)
    assert found["AllBlocksCleared"].events[:2] == [Cleared(), Cleared()]
    assert any(isinstance(event, Removed) and len(event.hashes) == 1 for event in found["BlockRemoved"].events)


def test_what_sglang_sent() -> None:
    (_, cleared), (_, root) = recorded("sglang-0.5.23")
    assert decode(cleared).events == [Cleared()]
    (event,) = decode(root).events
    assert isinstance(event, Stored)
    assert event.hashes == [-3761036965632255877 % 2**64]
    assert event.by_tokens


def test_a_hash_is_one_number_in_whatever_form_it_comes() -> None:
    digest = bytes(range(32))
    low = int.from_bytes(digest[-8:], "big")
    signed = low - 2**64 if low >= 2**63 else low
    for given_hash in (digest, low, signed):
        assert only(removed(given_hash)) == Removed([low])


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [1, -1], None, [5, 6, 7, 8], 2, None],
        ["BlockStored", [1, -1], None, [5, 6, 7, 8], 2, None, "GPU", None, [None, None], 0, None, "of tomorrow", 9],
        stored([1, -1], [5, 6, 7, 8], block_size=2, of_tomorrow={"a": [1]}),
    ],
)
def test_positional_and_tagged_events_are_the_same_and_what_is_new_is_ignored(event: object) -> None:
    assert msgspec.structs.replace(only(event), group=None) == Stored([1, 2**64 - 1], None, [5, 6, 7, 8], 2)  # type: ignore[type-var]


def test_old_removals_and_clearings_have_no_more_than_they_need() -> None:
    assert decode(packed(["BlockRemoved", [3]], ["AllBlocksCleared"])).events == [Removed([3]), Cleared()]


def test_batches_without_a_rank_and_with_more_than_that() -> None:
    for rest in ([], [None], [3, "more"]):
        assert decode(msgspec.msgpack.encode([2.5, [CLEARED], *rest])).at == 2.5


@pytest.mark.req("ROUTERS-13")
@pytest.mark.parametrize(
    "fields",
    [
        {"extra_keys": [["image-1", 0]]},
        {"extra_keys": [["salt"]], "parent_block_hash": 4},
        {"extra_keys": [["salt", b"prompt embeds"]]},
        {"token_ids": [1]},
        {"lora_id": 3},
    ],
    ids=["image", "key of a child", "embeds", "tokens of other blocks too", "adapter without a name"],
)
def test_blocks_that_more_than_tokens_salt_and_adapter_tell_say_so(fields: dict[str, object]) -> None:
    event = only(stored([1], [1, 2], **{"block_size": 2, **fields}))
    assert isinstance(event, Stored)
    assert not event.by_tokens


TEXT = [None, [], ["lora-a"]]
IMAGE = [["image-1", 0]]
"""Extra keys of a block with an image: its digest and where it begins."""


@given(
    st.lists(st.sampled_from([*TEXT, *[IMAGE] * 3]), min_size=1, max_size=8),
    st.integers(1, 3),
    st.none() | st.integers(1, 9),
    st.booleans(),
)
def test_the_text_before_the_first_image_is_an_event_of_its_own(keys: list[object], size: int, parent: int | None, salted: bool) -> None:
    """Whatever keys the blocks have: no block, token or parent is lost, and the first event ends where the first image begins."""
    salted = salted and parent is None and keys[0] is not IMAGE
    if salted:
        keys = [["salt", "lora-a"] if keys[0] == ["lora-a"] else ["salt"], *keys[1:]]
    hashes = list(range(100, 100 + len(keys)))
    tokens = list(range(len(keys) * size))
    event = stored(hashes, tokens, block_size=size, parent_block_hash=parent, lora_name="lora-a", extra_keys=keys, medium="CPU")
    events = decode(packed(CLEARED, event, CLEARED)).events
    assert (events[0], events[-1]) == (Cleared(), Cleared())
    parts = [part for part in events if isinstance(part, Stored)]
    text = next((at for at, key in enumerate(keys) if key is IMAGE), len(keys))
    assert [len(part.hashes) for part in parts if part.by_tokens] == ([text] if text else [])
    assert len(parts) == (2 if 0 < text < len(keys) else 1)
    assert [block for part in parts for block in part.hashes] == hashes
    assert [token for part in parts for token in part.tokens] == tokens
    assert [part.parent for part in parts] == [parent, *[hashes[text - 1]] * (len(parts) - 1)]
    assert [part.salt for part in parts] == ["salt" if salted else None, *[None] * (len(parts) - 1)]
    assert {(part.lora, part.medium, part.block_size) for part in parts} == {("lora-a", "CPU", size)}


def test_an_image_in_an_event_that_vllm_sent_costs_only_what_comes_after_it() -> None:
    batch = msgspec.msgpack.decode(dict(recorded("vllm-0.32.0"))["BlockStored/salt"])
    wire = batch[1][0]
    wire["extra_keys"][7] = [["9c1f", 240]]
    text, rest = decode(msgspec.msgpack.encode(batch)).events
    assert isinstance(text, Stored)
    assert isinstance(rest, Stored)
    assert (text.by_tokens, len(text.hashes), text.salt, rest.by_tokens, len(rest.hashes)) == (True, 7, "tenantA", False, 17)


def test_sglang_names_the_salt_in_a_field_and_may_hash_pairs() -> None:
    event = only(stored([1], [(1, 2), (2, 3)], block_size=2, cache_salt="s"))
    assert isinstance(event, Stored)
    assert (event.salt, event.tokens) == ("s", [(1, 2), (2, 3)])


def test_secrets_are_in_no_text() -> None:
    event = only(stored([1], [424242], extra_keys=[["secret-salt"]]))
    batch = decode(packed(stored([1], [424242], extra_keys=[["secret-salt"]])))
    for text in (repr(event), str(event), repr(batch), f"{event.__rich_repr__()}"):  # type: ignore[attr-defined]
        assert "424242" not in text
        assert "secret" not in text


def nested(depth: int) -> bytes:
    fine = packed(stored([1], extra_keys=[["DEEP"]]))
    return fine.replace(b"\xa4DEEP", b"\x91" * depth + b"\xc0")


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "no batch of KV events"),
        (b"\xc1", "no batch of KV events"),
        (packed(CLEARED) + b"\x00", "no batch of KV events"),
        (msgspec.msgpack.encode({"ts": 1.0}), "no batch of KV events"),
        (msgspec.msgpack.encode([1.0]), "no batch of KV events"),
        (packed({"type": "BlockMoved"}), "event of unknown type"),
        (packed(["BlockMoved", 1]), "event of unknown type"),
        (packed({"type": "BlockStored"}), "missing required field `block_hashes`"),
        (packed(removed("text")), "got `str`"),
        (packed(removed(1), ["BlockRemoved", [2]]), "no batch of KV events"),
        (packed(removed(b"short")), "block hash of 5 bytes"),
        (packed(removed(bytes(65))), "block hash of 65 bytes"),
        (packed(stored([1], [], block_size=0)), "blocks of 0 tokens"),
        (packed(stored([1], lora_name="x" * 257)), "name of 257 characters"),
        (packed(stored([1], [424242, "424243"])), "got `str`"),
        (packed(removed(1), at=float("nan")), "no time of day"),
        (packed(removed(1), at=-1.0), "no time of day"),
        (packed(stored([1], medium="secret")).replace(b"secret", b"secre\xff"), "not UTF-8"),
        (nested(100_000), "nested too deeply"),
        (packed(*[CLEARED] * (MAX_EVENTS + 1)), f"length <= {MAX_EVENTS}"),
        (packed(*[removed(*range(1_000))] * 66), "66000 block hashes, more than"),
        (packed(stored([1], [7, 7, 7], block_size=2)), "3 tokens for 1 blocks of 2"),
        (packed(stored([1], extra_keys=[None, None])), "extra keys of 2 blocks where it has 1"),
        (packed(stored([1], extra_keys=[[]] * (MAX_HASHES + 1))), f"length <= {MAX_HASHES}"),
        (packed(stored([1], extra_keys="secret")), "got `str`"),
        (bytes(MAX_BATCH_BYTES + 1), "bytes, more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_in_words_and_without_its_content(payload: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        decode(payload)
    text = str(raised.value)
    assert len(text) < 250
    assert "secre" not in text
    assert "42424" not in text
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def broken(rng: random.Random) -> bytes:
    samples = [payload for _, payload in recorded("vllm-0.32.0")]
    payload = bytearray(rng.choice(samples))
    for _ in range(rng.randint(1, 5)):
        payload[rng.randrange(len(payload))] = rng.randrange(256)
    return bytes(payload[: rng.randint(1, len(payload))] if rng.random() < 0.2 else payload)


@settings(deadline=None)
@given(st.binary(max_size=400) | st.randoms().map(broken))
def test_any_bytes_are_a_batch_or_a_value_error(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(payload)
