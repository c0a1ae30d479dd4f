"""Frames of the write-ahead log: what goes in comes out, and no damage reaches beyond the frame it is in."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.usage import Usage
from tenancy.usage import GuardBlock, UsageEvent
from tenancy.wal_frames import MAGIC, MAX_NUMBER, MAX_PAYLOAD, MAX_TEXT, Damage, frame, read_frames, tamed


def event(n: int = 0, **fields: object) -> UsageEvent:
    known: dict[str, object] = {
        "request_id": f"req-{n}",
        "at_unix_ms": 1_700_000_000_000 + n,
        "tenant": "acme",
        "project": "default",
        "key_id": "k",
        "user": "",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "pool": "p",
        "revision": "1",
        "lora": "",
        "outcome": "ok",
        "closing": "settle",
        "usage": Usage(n, 2 * n),
    }
    return UsageEvent(**{**known, **fields})  # type: ignore[arg-type]  # a test's shorthand


blocks = st.builds(GuardBlock, st.text(max_size=300), st.text(max_size=300), st.just("input"), st.just("0123"), st.booleans())
events = st.builds(
    event,
    st.integers(0, 10**12),
    user=st.text(max_size=300),
    cost_nanousd=st.integers(-(2**80), 2**80),
    blocked=st.none() | blocks,
)


@given(st.lists(events, max_size=5))
def test_whatever_goes_in_comes_out(given_events: list[UsageEvent]) -> None:
    read = list(read_frames(b"".join(map(frame, given_events))))
    assert [e.request_id for e in read if isinstance(e, UsageEvent)] == [e.request_id for e in given_events]
    for wanted, found in zip(given_events, read, strict=True):
        assert found in (wanted, tamed(wanted))


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(data: bytes) -> None:
    covered = 0
    for found in read_frames(data):
        covered += found.size if isinstance(found, Damage) else len(frame(found))
    assert covered == len(data)


@given(st.integers(0, 2**31), st.integers(0, 10))
def test_a_flipped_bit_costs_one_event(seed: int, others: int) -> None:
    rng = random.Random(seed)
    frames = [frame(event(n)) for n in range(others + 1)]
    hit = rng.randrange(len(frames))
    data = bytearray(b"".join(frames))
    data[sum(map(len, frames[:hit])) + rng.randrange(len(frames[hit]))] ^= 1 << rng.randrange(8)
    read = list(read_frames(bytes(data)))
    assert [e for e in read if isinstance(e, UsageEvent)] == [event(n) for n in range(others + 1) if n != hit]
    (damage,) = [d for d in read if isinstance(d, Damage)]
    assert (damage.offset, damage.size) == (sum(map(len, frames[:hit])), len(frames[hit]))
    assert damage.why


@given(st.integers(1, 3000))
def test_a_torn_tail_costs_what_was_torn(cut: int) -> None:
    frames = [frame(event(n)) for n in range(5)]
    data = b"".join(frames)
    kept = data[:-cut]
    read = list(read_frames(kept))
    whole = [n for n in range(5) if sum(map(len, frames[: n + 1])) <= len(kept)]
    assert [e for e in read if isinstance(e, UsageEvent)] == [event(n) for n in whole]
    for damage in read[len(whole) :]:
        assert isinstance(damage, Damage)
        assert damage.why.startswith("torn")


def test_a_caller_cannot_hide_a_frame_in_a_label() -> None:
    forged = frame(event(7, tenant="someone-else"))
    with pytest.raises(UnicodeDecodeError):
        MAGIC.decode()
    hiding = bytearray(frame(event(1, user=forged.decode("latin-1"))))
    hiding[4] ^= 0xFF  # the frame around it is damaged
    (found,) = read_frames(bytes(hiding))
    assert isinstance(found, Damage)


def test_what_cannot_be_written_as_it_is_is_mended() -> None:
    odd = event(1, user="a\ud800\0b", model="x" * 2 * MAX_PAYLOAD, cost_nanousd=2**70, usage=Usage(-5, 2**65))
    (found,) = read_frames(frame(odd))
    assert isinstance(found, UsageEvent)
    assert (found.user, len(found.model), found.cost_nanousd) == ("a?\ufffdb", MAX_TEXT, MAX_NUMBER)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (0, MAX_NUMBER)


def test_a_length_beyond_reason_is_damage() -> None:
    (found,) = read_frames(MAGIC + b"\xff\xff\xff\xff" + b"\0" * 100)
    assert isinstance(found, Damage)
    assert "cannot be" in found.why


def test_a_frame_of_another_shape_is_named() -> None:
    good = frame(event(1))
    import zlib

    payload = b"\x93\x01\x02\x03"
    length = len(payload).to_bytes(4, "little")
    strange = MAGIC + length + zlib.crc32(length + payload).to_bytes(4, "little") + payload
    found = list(read_frames(strange + good))
    assert isinstance(found[0], Damage)
    assert "no event of this version" in found[0].why
    assert found[1:] == [event(1)]
